"""Where a resumed run goes on, and what it says of other batches."""

import os

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from mmpretrain.registry import LOOPS
from torch.utils.data import DataLoader, Dataset
from toy_resume import (
    EPOCHS,
    IMAGES,
    LENGTH,
    RecordHook,
    Run,
    log,
    losses,
    make_images,
    stop_after,
    train,
)

from mim_plugins.datasets import PassSampler
from mim_plugins.engine import position
from mim_plugins.engine.loops import batches_from


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('images'))


@pytest.fixture(scope='module')
def stopped(images, tmp_path_factory):
    """A run that was stopped in its second epoch, after 8 of 20 images."""
    run = Run(tmp_path_factory.mktemp('stopped'))
    assert train(run, images, stop_after(LENGTH + 2)) == [75], log(run)
    return run


def copy_of(run, folder, **changes):
    """The same state in a folder of its own, to go on from."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in run.folder.glob('*.pth'):
        (folder / path.name).write_bytes(path.read_bytes())
    return Run(folder, resume=True, **changes)


def seen(run, first, last):
    """Images of a range of iterations, by process."""
    rows = losses(run)
    return [
        rows[f'{rank}:{iteration}'].split()[1]
        for iteration in range(first, last)
        for rank in range(run.processes)
    ]


def flat(groups):
    return sorted(int(i) for group in groups for i in group.split('+'))


def test_loops_are_mmengines_and_registered():
    assert issubclass(LOOPS.get('PretrainEpochLoop'), EpochBasedTrainLoop)
    assert issubclass(LOOPS.get('PretrainIterLoop'), IterBasedTrainLoop)


def test_the_rest_of_the_epoch_is_what_was_not_seen(stopped, images, tmp_path):
    run = copy_of(stopped, tmp_path)
    assert train(run, images) == [0], log(run)
    first = flat(seen(stopped, LENGTH, LENGTH + 2))
    rest = flat(seen(run, LENGTH + 2, 2 * LENGTH))
    assert sorted(first + rest) == list(range(IMAGES))
    assert 'without the first 2 batches' in log(run)  # NMI


@pytest.mark.parametrize(
    'name, value',
    [
        ('train_dataloader.batch_size', 3),
        ('train_dataloader.dataset.source.ann_file', 'fewer.txt'),
    ],
)
def test_batches_that_do_not_go_on_there_are_refused(
    name, value, stopped, images, tmp_path
):
    lines = [f'a/{i}.png 0' for i in range(0, IMAGES, 2)]
    (images / 'fewer.txt').write_text('\n'.join(lines))
    run = copy_of(stopped, tmp_path, changes=((name, value),))
    assert train(run, images) == [1]
    assert 'ConfigError: The checkpoint is in the middle of epoch 2' in log(
        run
    )
    assert 'after 8 of 20 images in batches of 4' in log(run)
    assert not losses(run)


@pytest.mark.parametrize(
    'processes', [2, pytest.param(1, marks=pytest.mark.full)]
)
def test_the_position_is_counted_in_images(
    processes, stopped, images, tmp_path
):
    """8 images are 4 batches of 2, of one process or two of batches of 1."""
    size = (('train_dataloader.batch_size', 2 // processes),)
    run = copy_of(stopped, tmp_path, processes=processes, changes=size)
    assert set(train(run, images)) == {0}, log(run)
    assert 'it goes on at epoch 2 after iteration 4 of 10' in log(run)
    assert f'0:{IMAGES // 2 + 3}' not in losses(run)
    first = flat(seen(stopped, LENGTH, LENGTH + 2))
    rest = flat(seen(run, IMAGES // 2 + 4, IMAGES))
    assert sorted(first + rest) == list(range(IMAGES))


def test_other_processes_with_the_same_batch_are_no_change(
    stopped, images, tmp_path
):
    alone = copy_of(stopped, tmp_path / 'one')
    both = copy_of(stopped, tmp_path / 'two', processes=2)
    assert train(alone, images) == [0]
    assert train(both, images) == [0, 0], log(both)
    assert 'was made with' not in log(both)
    for i in range(LENGTH + 2, EPOCHS * LENGTH):
        assert flat(seen(alone, i, i + 1)) == flat(seen(both, i, i + 1))


def test_any_batch_goes_on_at_the_end_of_an_epoch(images, tmp_path):
    once = Run(tmp_path / 'once', changes=(('train_cfg.max_epochs', 1),))
    assert train(once, images) == [0]
    size = (('train_dataloader.batch_size', 10),)
    run = copy_of(once, tmp_path / 'run', changes=size)
    assert train(run, images) == [0], log(run)
    assert 'it goes on at epoch 2 after iteration 0 of 2' in log(run)
    assert list(losses(run))[-1] == f'0:{2 * EPOCHS - 1}'


def test_a_seed_that_was_drawn_is_kept(images, tmp_path):
    drawn = (('randomness.seed', None),)
    run = Run(tmp_path, changes=drawn)
    assert train(run, images, stop_after(2)) == [75]
    assert train(run.again(), images, draw_another) == [0], log(run)
    assert 'Samples go on with seed' in log(run)
    assert flat(seen(run, 0, LENGTH)) == list(range(IMAGES))


def test_a_step_that_was_not_finished_is_made_again(images, tmp_path):
    """Epochs of 5 iterations, steps of 3: epoch_1.pth is within a step."""
    steps = (('optim_wrapper.accumulative_counts', 3),)
    whole = Run(tmp_path / 'whole', changes=steps)
    assert train(whole, images) == [0], log(whole)
    run = Run(tmp_path / 'run', changes=steps)
    assert train(run, images, killed_in(LENGTH + 2)) == [-9]
    assert train(run.again(), images) == [0], log(run)
    assert 'goes back 2 iteration(s)' in log(run)
    assert losses(run) == losses(whole)
    assert run.final.read_text() == whole.final.read_text()


def draw_another(rank):
    np.random.seed(12345)  # what mmengine draws a seed from


def killed_in(iteration):
    return stop_after(iteration, number=9)


VALIDATION = {
    'val_dataloader': {
        'batch_size': 5,
        'dataset': {
            'type': 'CustomDataset',
            'serialize_data': False,
            'pipeline': [
                {'type': 'LoadImageFromFile'},
                {'type': 'CenterCrop', 'crop_size': 12},
                {'type': 'PackInputs'},
            ],
        },
    },
    'val_cfg': {'type': 'KNNLoop', 'bank_dataloader': {}},
    'val_evaluator': {'type': 'KNNAccuracy', 'k': [1]},
}


@pytest.mark.parametrize(
    'by_epoch', [True, pytest.param(False, marks=pytest.mark.full)]
)
def test_the_validation_after_a_checkpoint_is_made(by_epoch, images, tmp_path):
    validation = {**VALIDATION}
    validation['val_dataloader']['dataset']['data_root'] = str(images)
    every = 1 if by_epoch else 4
    changes = (*validation.items(), ('train_cfg.val_interval', every))
    run = Run(tmp_path, by_epoch=by_epoch, changes=changes)
    assert train(run, images, killed_before_validation) == [-9], log(run)
    assert not (tmp_path / 'validations').exists()
    assert train(run.again(), images) == [0], log(run)
    done = [int(n) for n in (tmp_path / 'validations').read_text().split()]
    assert done == ([5, 10, 15] if by_epoch else [4, 8, 12, 15])


def killed_before_validation(rank):
    RecordHook.before_val = lambda *_: os.kill(os.getpid(), 9)


class Counted(Dataset):
    """Remembers what was read."""

    def __init__(self, size=12):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, key):
        self.read.append(int(getattr(key, 'index', key)))
        return torch.tensor(self.read[-1])


def loader_of(sampler, **options):
    data = Counted()
    return DataLoader(data, 2, sampler=sampler(data, seed=0, **options))


@pytest.mark.parametrize('options', [{}, {'infinite': True}])
def test_nothing_is_read_and_thrown_away(options):
    whole = batches_from(loader_of(PassSampler, **options), 0)
    expected = [next(whole).tolist() for _ in range(6)]
    loader = loader_of(PassSampler, **options)
    rest = batches_from(loader, 2)
    assert [next(rest).tolist() for _ in range(4)] == expected[2:]
    assert loader.dataset.read == sum(expected[2:], [])


def test_other_samplers_read_what_comes_before(monkeypatch):
    said = []
    monkeypatch.setattr(
        position, 'print_log', lambda text, **_: said.append(text)
    )
    expected = list(batches_from(loader_of(DefaultSampler), 0))
    assert not said
    loader = loader_of(DefaultSampler)
    rest = list(batches_from(loader, 2))
    assert torch.equal(torch.cat(rest), torch.cat(expected[2:]))
    assert len(loader.dataset.read) == 12
    assert '2 batches that were used before are read' in said[0]
