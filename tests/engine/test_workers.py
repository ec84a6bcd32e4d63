"""A run is the same for any number of workers."""

import pytest
from toy_resume import (
    EPOCHS,
    LENGTH,
    METHODS,
    PATCH,
    Run,
    log,
    losses,
    make_images,
    train,
)

MASK = {'type': 'BlockMask', 'patch_size': PATCH, 'min_patches': 1}


@pytest.mark.parametrize('method', METHODS)
def test_losses_and_weights_are_the_same_bit_by_bit(method, tmp_path):
    images = make_images(tmp_path / 'images')
    changes = (('train_dataloader.dataset.mask', MASK),)
    results = []
    for workers in (0, 1, 3):
        folder = tmp_path / str(workers)
        run = Run(folder, method, workers=workers, changes=changes)
        assert train(run, images) == [0], log(run)
        results.append((losses(run), run.final.read_text()))
    found, _ = results[0]
    assert len(set(found.values())) == EPOCHS * LENGTH
    assert results[1] == results[0]
    assert results[2] == results[0]
