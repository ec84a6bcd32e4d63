"""The demo data on disk: layouts, readers, manifest, half-written folders."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mim_plugins.datasets.demo import (
    CLASS_NAMES,
    MANIFEST,
    DemoDataConfig,
    DemoDataError,
    draw,
    generate,
    make_demo_data,
    make_scene,
    manifest,
)
from mim_plugins.datasets.demo.layouts import coco_annotations, label_map

SMALL = DemoDataConfig(train=30, val=10, size=32, scene_size=48, seed=4)
TOOL = Path(__file__).resolve().parents[2] / 'tools' / 'make_demo_data.py'


def contents(root):
    """Bytes of every file by its path below the root."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }


@pytest.fixture(scope='module')
def demo(tmp_path_factory):
    root = tmp_path_factory.mktemp('demo') / 'data'
    assert make_demo_data(root, SMALL)
    return root


def test_bytes_do_not_depend_on_the_worker_count(demo, tmp_path):
    for workers in (2, 3):
        other = tmp_path / str(workers)
        make_demo_data(other, SMALL, workers=workers)
        assert contents(other) == contents(demo)


def test_a_picture_does_not_depend_on_how_many_there_are(demo, tmp_path):
    more = DemoDataConfig(train=40, val=12, size=32, scene_size=48, seed=4)
    make_demo_data(tmp_path / 'more', more)
    larger, smaller = contents(tmp_path / 'more'), contents(demo)
    for name, data in smaller.items():
        if not name.endswith('.json'):
            assert larger[name] == data, name
    assert len(larger) == len(smaller) + 12 * 4


def test_other_seeds_give_other_pictures(demo, tmp_path):
    other = DemoDataConfig(train=10, val=10, size=32, scene_size=48, seed=5)
    make_demo_data(tmp_path / 'other', other)
    mine, theirs = contents(demo), contents(tmp_path / 'other')
    same = [n for n in theirs if n[-4:] != 'json' and mine[n] == theirs[n]]
    assert not same


def test_classes_are_balanced(demo):
    for split, each in (('train', 3), ('val', 1)):
        paths = (demo / 'imagenet' / split).glob('*/*.JPEG')
        counts = Counter(path.parent.name for path in paths)
        assert counts == dict.fromkeys(CLASS_NAMES, each)


def test_pictures_are_what_draw_gives(demo):
    """Up to what JPEG loses."""
    path = demo / 'imagenet/val/dotted_heart/dotted_heart_000002.JPEG'
    stored = Image.open(path)
    assert stored.format == 'JPEG' and stored.mode == 'RGB'
    expected = draw(make_scene(4, 'val', 2), 32).image.astype(int)
    assert np.abs(np.asarray(stored) - expected).mean() < 8


def test_ade20k_and_coco_share_their_pictures(demo):
    ade = demo / 'ade20k/images/training/ADE_train_00000007.jpg'
    coco = demo / 'coco/train2017/000000000007.jpg'
    assert ade.read_bytes() == coco.read_bytes()
    assert os.path.samefile(ade, coco)


def test_one_thing_each_gives_the_same_drawings_everywhere(tmp_path):
    config = DemoDataConfig(
        train=10, val=10, size=48, scene_size=48, scene_things=(1, 1)
    )
    make_demo_data(tmp_path / 'same', config)
    files = contents(tmp_path / 'same')
    name = 'imagenet/train/checked_disc/checked_disc_000001.JPEG'
    assert files[name] == files['coco/train2017/000000000002.jpg']


def test_imagenet_layout_is_read_by_mmpretrain(demo):
    datasets = pytest.importorskip('mmpretrain.datasets')
    dataset = datasets.ImageNet(
        data_root=str(demo / 'imagenet'),
        split='train',
        metainfo=dict(classes=CLASS_NAMES),
        pipeline=[dict(type='LoadImageFromFile')],
    )
    assert len(dataset) == SMALL.train
    labels = [dataset.get_data_info(i)['gt_label'] for i in range(30)]
    assert Counter(labels) == dict.fromkeys(range(10), 3)
    for i in (0, 17):
        sample = dataset[i]
        folder = Path(sample['img_path']).parent.name
        assert sample['img'].shape == (32, 32, 3)
        assert folder == dataset.CLASSES[sample['gt_label']]


@pytest.mark.parametrize('ground_is_a_class', [False, True])
def test_ade20k_layout_is_read_by_mmseg(demo, ground_is_a_class):
    datasets = pytest.importorskip(
        'mmseg.datasets', reason='mmseg is not installed'
    )
    classes = ('ground',) * ground_is_a_class + CLASS_NAMES
    dataset = datasets.BaseSegDataset(
        data_root=str(demo / 'ade20k'),
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'
        ),
        img_suffix='.jpg',
        seg_map_suffix='.png',
        reduce_zero_label=not ground_is_a_class,
        metainfo=dict(classes=classes),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmseg.LoadAnnotations'),
        ],
    )
    assert len(dataset) == SMALL.train
    for i in range(10):
        sample = dataset[i]
        labels = sample['gt_seg_map']
        assert sample['img'].shape == (48, 48, 3)
        assert labels.shape == (48, 48)
        present = set(np.unique(labels).tolist())
        scene = make_scene(4, 'train', i, SMALL.scene_things)
        expected = {t.label + ground_is_a_class for t in scene.things}
        assert present == expected | {0 if ground_is_a_class else 255}


def test_ade20k_layout_is_read_by_mmsegs_ade20k_class(demo):
    datasets = pytest.importorskip(
        'mmseg.datasets', reason='mmseg is not installed'
    )
    dataset = datasets.ADE20KDataset(
        data_root=str(demo / 'ade20k'),
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation',
        ),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmseg.LoadAnnotations'),
        ],
    )
    assert len(dataset) == SMALL.val
    present = set(np.unique(dataset[3]['gt_seg_map']).tolist())
    scene = make_scene(4, 'val', 3, SMALL.scene_things)
    assert present == {t.label for t in scene.things} | {255}


def test_coco_layout_is_read_by_pycocotools(demo):
    pycoco = pytest.importorskip('pycocotools.coco')
    coco = pycoco.COCO(str(demo / 'coco/annotations/instances_train2017.json'))
    assert [c['name'] for c in coco.cats.values()] == list(CLASS_NAMES)
    assert list(coco.imgs) == list(range(1, SMALL.train + 1))
    assert list(coco.anns) == list(range(1, len(coco.anns) + 1))
    seen = 0
    for image in coco.imgs.values():
        path = demo / 'coco/train2017' / image['file_name']
        assert Image.open(path).size == (image['width'], image['height'])
        label_path = demo / 'ade20k/annotations/training'
        label_path /= f'ADE_train_{image["id"]:08d}.png'
        labels = np.asarray(Image.open(label_path))
        union = np.zeros_like(labels)
        for item in coco.loadAnns(coco.getAnnIds(image['id'])):
            mask = coco.annToMask(item)
            mine = (labels == item['category_id']) & (mask > 0)
            x, y, width, height = item['bbox']
            union |= mask
            seen += 1
            assert item['iscrowd'] == 0
            assert mine.sum() > 0.8 * mask.sum()
            assert item['area'] == pytest.approx(mask.sum(), rel=0.12)
            rows, columns = np.nonzero(mask)
            assert x <= columns.min() + 1 and y <= rows.min() + 1
            assert x + width >= columns.max()
            assert y + height >= rows.max()
            assert x >= 0 and x + width <= 48 and y >= 0 and y + height <= 48
        both = (union > 0) & (labels > 0)
        assert both.sum() > 0.85 * ((union > 0) | (labels > 0)).sum()
    assert seen == len(coco.anns) > SMALL.train


def test_coco_layout_is_read_by_mmdet(demo):
    if importlib.util.find_spec('mmcv._ext') is None:
        pytest.skip('mmdet needs mmcv with compiled operators')
    datasets = pytest.importorskip('mmdet.datasets')
    dataset = datasets.CocoDataset(
        data_root=str(demo / 'coco'),
        ann_file='annotations/instances_val2017.json',
        data_prefix=dict(img='val2017/'),
        metainfo=dict(classes=CLASS_NAMES),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmdet.LoadAnnotations', with_bbox=True, with_mask=True),
        ],
    )
    assert len(dataset) == SMALL.val
    for i in range(SMALL.val):
        sample = dataset[i]
        scene = make_scene(4, 'val', i, SMALL.scene_things)
        labels = [thing.label for thing in scene.things]
        assert sample['gt_bboxes_labels'].tolist() == labels
        assert len(sample['gt_bboxes']) == len(sample['gt_masks'])


def test_things_of_no_class_are_not_labelled():
    scene = make_scene(0, 'train', 2).recombine(texture='stripes')
    for write in (label_map, coco_annotations):
        with pytest.raises(ValueError, match='heart with stripes'):
            write(scene, draw(scene, 32))


def test_a_second_run_reuses_the_data(tmp_path):
    config = DemoDataConfig(train=10, val=10, size=16, layouts=('imagenet',))
    assert make_demo_data(tmp_path / 'x', config)
    before = (tmp_path / 'x' / MANIFEST).stat().st_mtime_ns
    assert not make_demo_data(tmp_path / 'x', config, workers=2)
    assert (tmp_path / 'x' / MANIFEST).stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == ['x']
    content = json.loads((tmp_path / 'x' / MANIFEST).read_text())
    assert content['generator_version'] == manifest.GENERATOR_VERSION
    assert content['parameters']['layouts'] == ['imagenet']


def test_other_parameters_need_another_folder_or_overwrite(tmp_path):
    first = DemoDataConfig(train=10, val=10, size=16, layouts=('imagenet',))
    second = DemoDataConfig(train=10, val=10, size=20, layouts=('imagenet',))
    make_demo_data(tmp_path / 'x', first)
    before = contents(tmp_path / 'x')
    with pytest.raises(DemoDataError, match='size is 16, asked for is 20'):
        make_demo_data(tmp_path / 'x', second)
    assert contents(tmp_path / 'x') == before
    assert make_demo_data(tmp_path / 'x', second, overwrite=True)
    assert not make_demo_data(tmp_path / 'x', second)
    assert [path.name for path in tmp_path.iterdir()] == ['x']


def test_another_generator_version_is_not_reused(tmp_path, monkeypatch):
    config = DemoDataConfig(train=10, val=10, size=16, layouts=('imagenet',))
    make_demo_data(tmp_path / 'x', config)
    monkeypatch.setattr(manifest, 'GENERATOR_VERSION', 10**6)
    with pytest.raises(DemoDataError, match='version 1000000'):
        make_demo_data(tmp_path / 'x', config)


@pytest.mark.parametrize(
    'damage', ['file gone', 'manifest cut', 'no manifest']
)
def test_a_folder_that_is_not_whole_is_not_trusted(tmp_path, damage):
    config = DemoDataConfig(train=10, val=10, size=16, layouts=('imagenet',))
    out = tmp_path / 'x'
    make_demo_data(out, config)
    if damage == 'file gone':
        next(out.rglob('*.JPEG')).unlink()
    elif damage == 'manifest cut':
        (out / MANIFEST).write_text('{"generator_version"')
    else:
        (out / MANIFEST).unlink()
    with pytest.raises(DemoDataError):
        make_demo_data(out, config)
    if damage == 'no manifest':
        # It could be anybody's folder: never deleted.
        with pytest.raises(DemoDataError, match='not whole demo data'):
            make_demo_data(out, config, overwrite=True)
    else:
        assert make_demo_data(out, config, overwrite=True)
        assert not make_demo_data(out, config)


@pytest.mark.parametrize('workers', [1, 2])
def test_an_error_while_writing_leaves_nothing(tmp_path, monkeypatch, workers):
    def fail(*args, **kwargs):
        raise OSError('No space left on device')

    monkeypatch.setattr(generate.files, 'save_picture', fail)
    config = DemoDataConfig(train=10, val=10, size=16)
    with pytest.raises(OSError, match='No space left'):
        make_demo_data(tmp_path / 'x', config, workers=workers)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('how', [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_leaves_nothing(tmp_path, how):
    command = [sys.executable, str(TOOL), str(tmp_path / 'x'), '--workers=2']
    run = subprocess.Popen(
        command + ['--train=100000', '--layouts=imagenet'],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob('*.JPEG')):
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.05)
        run.send_signal(how)
        assert run.wait(timeout=30) != 0
    finally:
        run.kill()
    assert not list(tmp_path.iterdir())


def test_the_tool_writes_reuses_and_refuses(tmp_path):
    def tool(*options):
        command = [sys.executable, str(TOOL), str(tmp_path / 'x')]
        small = ['--train=10', '--val=10', '--layouts', 'imagenet']
        return subprocess.run(
            command + small + list(options), capture_output=True, text=True
        )

    first = tool('--workers=2')
    assert first.returncode == 0, first.stderr
    assert 'written' in first.stdout
    assert '20 of 20 pictures' in first.stderr
    assert 'left as it is' in tool('--workers=1').stdout
    refused = tool('--seed=9')
    assert refused.returncode == 1
    assert 'seed is 0, asked for is 9' in refused.stderr
    assert 'Traceback' not in refused.stderr
    assert tool('--seed=9', '--overwrite').returncode == 0


@pytest.mark.parametrize(
    'wrong',
    [
        dict(train=0),
        dict(size=8),
        dict(quality=100),
        dict(seed=-1),
        dict(scene_things=(3, 2)),
        dict(layouts=()),
        dict(layouts=('voc',)),
    ],
)
def test_impossible_configs_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DemoDataConfig(**wrong)
