"""What becomes of images that cannot be read while training."""

import logging

import pytest
import torch
from mmengine.logging import MMLogger
from PIL import Image
from torch.utils.data import DataLoader

from mim_plugins.datasets import (
    PassSampler,
    SampleKey,
    ViewDataset,
    collate_views,
)
from mim_plugins.datasets.transforms import UnreadableImage

BROKEN = (2, 5, 6)


def make_folder(root, number=12, broken=BROKEN):
    """Pictures of one grey level each, which tells them apart."""
    for i in range(number):
        path = root / f'class{i // 4}' / f'{i:02d}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (8, 8), (i, i, i)).save(path)
        if i in broken:
            path.write_bytes(path.read_bytes()[:40])
    return root


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp('images'))


def dataset_of(folder, **options):
    source = {'type': 'CustomDataset', 'data_root': str(folder)}
    return ViewDataset(source, {'global': {'size': 8}}, **options)


def level(sample):
    """Number of the picture that a sample shows."""
    return sample['inputs']['views']['global'][0].unique().item()


def test_an_unreadable_image_is_replaced_and_named(folder):
    dataset = dataset_of(folder)
    for index in range(12):
        sample = dataset[SampleKey(index, seed=1)]
        record, shown = sample['data_samples'], level(sample)
        assert (shown == index) == (index not in BROKEN)
        assert shown not in BROKEN
        # label, path and index are those of what is shown
        assert record.sample_idx == shown
        assert record.img_path.endswith(f'{shown:02d}.png')
        assert record.gt_label.item() == shown // 4
        failed = record.get('unreadable', [])
        assert bool(failed) == (index in BROKEN)
        if failed:
            path, reason = failed[0]
            assert path == dataset.get_data_info(index)['img_path']
            assert reason and path not in reason


def replacements_of(dataset, keys):
    return [level(dataset[key]) for key in keys]


def test_the_replacement_follows_from_every_part_of_the_key(folder):
    dataset = dataset_of(folder)
    base = {'index': 2, 'seed': 3, 'epoch': 4, 'occurrence': 5}
    key = SampleKey(**base)
    shown = {level(dataset[key]) for _ in range(3)}
    assert len(shown) == 1
    for part in ('seed', 'epoch', 'occurrence'):
        keys = [SampleKey(**{**base, part: value}) for value in range(12)]
        assert len(set(replacements_of(dataset, keys))) > 3, part
    readable = [i for i in range(12) if i not in BROKEN]
    keys = [SampleKey(2, seed) for seed in range(200)]
    assert sorted(set(replacements_of(dataset, keys))) == readable


def test_views_of_other_images_stay_as_they_were(folder, tmp_path):
    """A file that breaks changes its own samples only."""
    whole = dataset_of(make_folder(tmp_path, broken=()))
    some = dataset_of(folder)
    for index in set(range(12)) - set(BROKEN):
        a, b = (d[SampleKey(index, 7)]['inputs'] for d in (whole, some))
        assert torch.equal(a['boxes']['global'][0], b['boxes']['global'][0])


def passes(folder, workers):
    dataset = dataset_of(folder)
    loader = DataLoader(
        dataset,
        batch_size=4,
        sampler=PassSampler(dataset, seed=5),
        num_workers=workers,
        collate_fn=collate_views,
    )
    for batch in loader:
        for sample in batch['data_samples']:
            yield sample.img_path, tuple(sample.get('unreadable', ()))


def test_workers_choose_the_same_replacements(folder):
    alone = list(passes(folder, 0))
    assert sum(bool(failed) for _, failed in alone) == len(BROKEN)
    assert list(passes(folder, 2)) == alone


def test_without_replacements_the_first_unreadable_file_is_an_error(folder):
    dataset = dataset_of(folder, replacements=0)
    assert level(dataset[SampleKey(0)]) == 0
    with pytest.raises(UnreadableImage, match='02.png') as caught:
        dataset[SampleKey(2)]
    assert caught.value.path.endswith('02.png')
    with pytest.raises(ValueError, match='replacements must be at least 0'):
        dataset_of(folder, replacements=-1)


@pytest.mark.parametrize(('number', 'tried'), [(3, 4), (10, 6)])
def test_the_number_of_tries_is_bounded(tmp_path, number, tried):
    dataset = dataset_of(
        make_folder(tmp_path, 6, range(6)), replacements=number
    )
    with pytest.raises(UnreadableImage, match=f'^{tried} images were tried'):
        dataset[SampleKey(1)]


def test_other_errors_are_not_hidden(folder):
    dataset = dataset_of(folder)
    dataset.load = lambda record: record['no such key']
    with pytest.raises(KeyError):
        dataset[SampleKey(2)]


def test_files_that_are_left_out_are_logged_once(tmp_path):
    make_folder(tmp_path, 4, ())
    (tmp_path / 'class0' / 'Thumbs.db').touch()
    (tmp_path / 'class0' / '.DS_Store').touch()
    logger = MMLogger.get_instance('left out', log_level='INFO')
    handler = logging.Handler()
    lines = []
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    dataset = dataset_of(tmp_path)
    dataset.full_init()
    dataset.full_init()
    assert [line for line in lines if 'left out' in line] == [
        f'{tmp_path}: 4 images; files that were left out: 1 .db, 1 hidden.'
    ]


def test_a_source_need_only_give_paths(folder):
    class Records:
        def __len__(self):
            return 12

        def get_data_info(self, index):
            name = f'class{index // 4}/{index:02d}.png'
            return {'img_path': str(folder / name)}

    dataset = ViewDataset(Records(), {'global': {'size': 8}})
    dataset.full_init()  # there is no folder to look into
    for index in (0, 2):
        sample = dataset[SampleKey(index)]
        assert sample['data_samples'].sample_idx == level(sample)
        assert 'gt_label' not in sample['data_samples']
