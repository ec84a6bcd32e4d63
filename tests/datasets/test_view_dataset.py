import copy
import random
import warnings

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner
from mmpretrain.datasets import CustomDataset
from mmpretrain.registry import DATASETS
from PIL import Image
from torch.utils.data import DataLoader

from mim_plugins.datasets import (
    PassSampler,
    SampleKey,
    ViewDataset,
    collate_views,
)
from mim_plugins.datasets.transforms import LoadImage

SHAPES = [(20, 30), (30, 20), (1, 500), (500, 1), (8, 8), (40, 40)]
JITTER = {'brightness': 0.4, 'contrast': 0.4, 'hue': 0.1, 'prob': 0.8}
VIEWS = {
    'global1': {
        'group': 'global',
        'size': (16, 24),
        'scale': (0.25, 1.0),
        'jitter': JITTER,
        'gray': 0.2,
        'blur': {'prob': 1.0},
    },
    'global2': {
        'group': 'global',
        'size': (16, 24),
        'jitter': JITTER,
        'solarize': {'prob': 0.2},
    },
    'local': {'num': 3, 'size': 8, 'scale': (0.05, 0.25)},
}
MASK = {'type': 'BlockMask', 'patch_size': 4, 'ratio': 0.4}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Two class folders of PNGs of many shapes; every third is grey."""
    root = tmp_path_factory.mktemp('images')
    rng = np.random.default_rng(0)
    for i in range(12):
        pixels = rng.integers(0, 256, (*SHAPES[i % len(SHAPES)], 3))
        image = Image.fromarray(pixels.astype(np.uint8))
        image = image.convert('L') if i % 3 == 0 else image
        path = root / f'class{i % 2}' / f'{i:02d}.png'
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    return root


def source_of(folder, **options):
    return {
        'type': 'CustomDataset',
        'data_root': str(folder),
        'serialize_data': False,
        **options,
    }


def dataset_of(folder, views=VIEWS, mask=MASK, **options):
    return ViewDataset(source_of(folder), views, mask, **options)


def equal(a, b):
    """Whether two nested samples or batches hold the same values."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and bool((a == b).all())
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return a == b


def test_sample_has_views_boxes_masks_and_label(folder):
    dataset = DATASETS.build(
        {
            'type': 'ViewDataset',
            'source': source_of(folder),
            'views': VIEWS,
            'mask': MASK,
        }
    )
    assert len(dataset) == 12
    assert dataset.metainfo['classes'] == ('class0', 'class1')
    assert dataset.sizes == {'global': (16, 24), 'local': (8, 8)}
    assert dataset.num_views == {'global': 2, 'local': 3}
    for index in range(12):
        sample = dataset[SampleKey(index, 0, 0)]
        inputs = sample['inputs']
        shapes = {
            group: [tuple(v.shape) for v in views]
            for group, views in inputs['views'].items()
        }
        assert shapes == {
            'global': [(3, 16, 24)] * 2,
            'local': [(3, 8, 8)] * 3,
        }
        assert inputs['views']['global'][0].dtype == torch.uint8
        height, width = inputs['image_size'].tolist()
        info = dataset.get_data_info(index)
        assert Image.open(info['img_path']).size == (width, height)
        for box in sum(inputs['boxes'].values(), []):
            assert box.dtype == torch.float32
            left, top, w, h, flip = box.tolist()
            assert left + w <= width and top + h <= height and flip in (0, 1)
        assert inputs['masks']['global'].shape == (2, 4, 6)
        assert inputs['masks']['global'].dtype == bool
        data_sample = sample['data_samples']
        assert data_sample.gt_label.item() == info['gt_label']
        assert data_sample.img_path == info['img_path']
        assert data_sample.sample_idx == index


def test_source_without_labels(folder, tmp_path):
    flat = tmp_path / 'flat'
    flat.mkdir()
    Image.new('RGB', (9, 9)).save(flat / 'a.png')
    for root in (folder, flat):
        source = source_of(root, with_label=False)
        dataset = ViewDataset(source, VIEWS)
        sample = dataset[SampleKey(0)]
        assert 'gt_label' not in sample['data_samples']
        assert 'masks' not in sample['inputs']
    assert len(dataset) == 1


def test_lazy_and_built_sources(folder):
    dataset = ViewDataset(source_of(folder, lazy_init=True), VIEWS)
    dataset.full_init()
    assert len(dataset) == 12
    built = CustomDataset(str(folder), pipeline=[], serialize_data=False)
    assert equal(ViewDataset(built, VIEWS)[3]['inputs'], dataset[3]['inputs'])


def test_sample_depends_on_its_key_alone(folder):
    dataset = dataset_of(folder)
    key = SampleKey(5, seed=1, epoch=2)
    first = dataset[key]['inputs']
    random.random(), np.random.rand(), torch.rand(1)
    dataset[SampleKey(4, 1, 2)]
    assert equal(first, copy.deepcopy(dataset)[key]['inputs'])
    for other in (
        key._replace(seed=2),
        key._replace(epoch=3),
        key._replace(occurrence=1),
    ):
        assert not equal(first['views'], dataset[other]['inputs']['views']), (
            other
        )
    assert equal(dataset[5]['inputs'], dataset[SampleKey(5)]['inputs'])


def global_states():
    state = np.random.get_state()
    return random.getstate(), state[1].tolist(), state[2:], torch.rand(1)


def seed_everything():
    random.seed(3)
    np.random.seed(3)
    np.random.randn()  # leaves a cached normal number behind
    torch.manual_seed(3)


class GlobalDraws(BaseTransform):
    """Loads a picture that depends on all three global generators."""

    def transform(self, results):
        values = [random.random(), np.random.rand(), torch.rand(1).item()]
        pixels = np.zeros((16, 16, 3)) + [int(v * 256) for v in values]
        return {**results, 'img': pixels.astype(np.uint8)}


def test_global_generators_are_left_as_they_were(folder):
    dataset = dataset_of(folder)
    foreign = dataset_of(folder)
    foreign.load, foreign._guard_global_rng = GlobalDraws(), True
    failing = dataset_of(folder)
    failing.load, failing._guard_global_rng = None, True
    seed_everything()
    expected = global_states()
    for key in (SampleKey(1), SampleKey(2, 3, 4, 5)):
        seed_everything()
        dataset[key]
        foreign[key]
        with pytest.raises(TypeError):
            failing[key]
        assert global_states() == expected


def test_foreign_transforms_are_seeded_by_the_key(folder, monkeypatch):
    from mmpretrain.registry import TRANSFORMS

    monkeypatch.setitem(TRANSFORMS._module_dict, 'GlobalDraws', GlobalDraws)
    views = {'global': {'size': 8}}
    dataset = dataset_of(folder, views, None, load={'type': 'GlobalDraws'})

    def colours(key):
        return dataset[key]['inputs']['views']['global'][0][:, 0, 0].tolist()

    first = colours(SampleKey(1))
    assert colours(SampleKey(1)) == first
    other = colours(SampleKey(1, epoch=1))
    assert all(a != b for a, b in zip(first, other))


def batches_of(dataset, workers, epochs):
    sampler = PassSampler(dataset, seed=3)
    loader = DataLoader(
        dataset,
        batch_size=4,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=collate_views,
    )
    passes = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        passes.append([batch['inputs'] for batch in loader])
    return passes


def test_workers_do_not_change_samples_and_see_the_epoch(folder):
    """0 and 2 persistent workers agree; masks start at their epoch."""
    mask = {**MASK, 'ratio': 0.5, 'start_epoch': 1}
    dataset = dataset_of(folder, mask=mask)
    alone, shared = (batches_of(dataset, n, 3) for n in (0, 2))
    assert equal(alone, shared)
    counts = [
        [batch['masks']['global']['count'] for batch in epoch]
        for epoch in shared
    ]
    assert counts[0] == [0, 0, 0]
    assert min(counts[1] + counts[2]) > 0
    sampler = PassSampler(dataset, seed=3)
    index = int(sampler.order(0)[0])
    views = [
        dataset[SampleKey(index, 3, e)]['inputs']['views'] for e in (0, 1)
    ]
    assert not equal(*views)


class ThreadsOfOpenCV(BaseTransform):
    """Everything is masked where OpenCV runs on one thread."""

    groups = ('global',)

    def transform(self, results):
        single = np.full((2, 1, 1), cv2.getNumThreads() == 1)
        return {**results, 'masks': {'global': single}}


def test_opencv_has_one_thread_in_a_worker(folder, monkeypatch):
    monkeypatch.setattr(
        'mim_plugins.datasets.view_dataset.TRANSFORMS.build',
        lambda cfg: ThreadsOfOpenCV() if cfg['type'] == 'X' else LoadImage(),
    )
    dataset = dataset_of(folder, mask={'type': 'X'})
    threads = cv2.getNumThreads()
    cv2.setNumThreads(2)
    try:
        loader = DataLoader(
            dataset, sampler=[0], num_workers=1, collate_fn=list
        )
        (sample,) = next(iter(loader))
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(threads)
    assert sample['inputs']['masks']['global'].all()


def test_runner_builds_the_loader_from_a_config(folder):
    loader = Runner.build_dataloader(
        ConfigDict(
            batch_size=5,
            num_workers=0,
            drop_last=True,
            dataset={
                'type': 'mmpretrain.ViewDataset',
                'source': source_of(folder, lazy_init=True),
                'views': VIEWS,
                'mask': MASK,
            },
            sampler={'type': 'mmpretrain.PassSampler', 'shuffle': True},
            collate_fn={'type': 'collate_views', 'pad_multiple': 16},
        ),
        seed=9,
    )
    assert loader.sampler.seed == 9
    batches = list(loader)
    assert len(batches) == 2
    assert batches[0]['inputs']['views']['global'].shape == (10, 3, 16, 24)
    assert len(batches[0]['inputs']['masks']['global']['index']) % 16 == 0
    assert len(batches[0]['data_samples']) == 5


def test_child_config_merges_into_a_view(folder):
    base = Config({'views': copy.deepcopy(VIEWS)})
    base.merge_from_dict(
        {
            'views.global1.size': 32,
            'views.global2': None,
            'views.local.num': 0,
        }
    )
    dataset = ViewDataset(source_of(folder), base.views, MASK)
    assert dataset.sizes == {'global': (32, 32)}
    assert dataset.num_views == {'global': 1}
    assert dataset[0]['inputs']['views']['global'][0].shape == (3, 32, 32)


@pytest.mark.parametrize(
    ('changes', 'error', 'message'),
    [
        (
            {'global1': {'size': 8, 'solarise': {}}},
            TypeError,
            "'solarise' in views.global1: did you mean 'solarize'",
        ),
        (
            {'local': {'size': 8, 'jitter': {'hues': 0.1}}},
            TypeError,
            "views.local: unknown key 'hues' in jitter: did you mean 'hue'",
        ),
        ({'local': {'size': 8, 'flip': 2}}, ValueError, 'views.local: flip'),
        ({'local': {'num': 2}}, TypeError, 'views.local needs a size'),
        ({'local': {'size': 8, 'num': -1}}, ValueError, 'views.local.num'),
        (
            {'global2': {'group': 'global', 'size': 24}},
            ValueError,
            r"group 'global' have sizes \[\(16, 24\), \(24, 24\)\]",
        ),
        (
            {'global1': {'group': 'global', 'size': 18}, 'global2': None},
            ValueError,
            "group 'global': a view of 18x18 px cannot be cut into patches",
        ),
        (dict.fromkeys(VIEWS), ValueError, 'no view is switched on'),
    ],
)
def test_wrong_views_are_refused(folder, changes, error, message):
    with pytest.raises(error, match=message):
        dataset_of(folder, {**VIEWS, **changes})


def test_masked_groups_must_exist(folder):
    with pytest.raises(TypeError, match="did you mean 'global'"):
        dataset_of(folder, mask={**MASK, 'groups': ('globals',)})
    mask = {**MASK, 'groups': ('global', 'local')}
    masks = dataset_of(folder, mask=mask)[0]['inputs']['masks']
    assert masks['local'].shape == (3, 2, 2)
    views = {**VIEWS, 'local': {**VIEWS['local'], 'num': 0}}
    dataset = dataset_of(folder, views, mask)
    assert list(dataset[0]['inputs']['masks']) == ['global']


def test_plain_indices_warn_in_the_second_pass(folder):
    dataset = dataset_of(folder)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for index in range(len(dataset)):
            dataset[index]
        dataset[SampleKey(0)]
    with pytest.warns(UserWarning, match='PassSampler'):
        dataset[0]
