"""One clear sentence from tools/train.py for each mistake."""

import importlib.util
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.runner import CheckpointLoader
from PIL import Image

from mim_plugins.engine.hooks.unreadable_hook import LIST_NAME, read_list

ROOT = Path(__file__).parents[2]
DATASET = 'train_dataloader.dataset'


def make_images(root, number=8):
    rng = np.random.default_rng(0)
    for i in range(number):
        path = root / f'class{i % 2}' / f'{i}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (36, 36, 3), np.uint8)).save(path)
    return root


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('images'))


def settings(images):
    """A tiny network on these images, by dotted key."""
    arch = 'model.student.arch'
    return {
        f'{arch}.embed_dims': 12,
        f'{arch}.num_layers': 1,
        f'{arch}.feedforward_channels': 12,
        'model.head.out_dim': 8,
        'model.head.hidden_dim': 8,
        'model.head.bottleneck_dim': 4,
        'train_dataloader.batch_size': 4,
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
        'train_cfg.max_epochs': 1,
        'val_evaluator.k': '[2]',
        'default_hooks.checkpoint.interval': 1,
        f'{DATASET}.source.data_root': images,
        'val_dataloader.dataset.data_root': images,
        'val_cfg.bank_dataloader.dataset.data_root': images,
    }


@pytest.fixture
def tool(monkeypatch, images, tmp_path):
    """Runs tools/train.py on a tiny network; changes by dotted key."""
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
    schemes = dict(CheckpointLoader._schemes)
    monkeypatch.setattr(CheckpointLoader, '_schemes', schemes)
    path = ROOT / 'tools' / 'train.py'
    spec = importlib.util.spec_from_file_location('train_tool', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    usual = settings(images)

    def run(changes, *arguments, config='configs/ibot/ibot_demo.py'):
        options = [f'{k}={v}' for k, v in {**usual, **changes}.items()]
        work_dir = str(tmp_path / 'run')
        config = str(ROOT / config)
        module.main(
            [config, '--work-dir', work_dir, *arguments]
            + ['--cfg-options', *options]
        )
        return tmp_path / 'run'

    return run


def refusal(tool, changes, *arguments):
    """The sentence that the tool leaves with, with exit code 1."""
    with pytest.raises(SystemExit) as caught:
        tool(changes, *arguments)
    sentence = caught.value.code
    assert isinstance(sentence, str) and '\n' not in sentence
    name, _, sentence = sentence.partition(': ')
    assert name.isidentifier()
    return sentence


@pytest.mark.parametrize(
    'where',
    [
        f'{DATASET}.source',
        'val_dataloader.dataset',
        'val_cfg.bank_dataloader.dataset',
    ],
)
def test_a_folder_that_does_not_exist(where, tool, tmp_path):
    gone = tmp_path / 'gone'
    text = refusal(tool, {f'{where}.data_root': gone})
    assert text.startswith(f'There is no folder {gone}')
    assert f'Correct {where}.data_root' in text


@pytest.mark.parametrize('where', [f'{DATASET}.source', 'val_dataloader'])
def test_folders_without_images(where, tool, tmp_path):
    where = where if 'source' in where else f'{where}.dataset'
    change = {f'{where}.data_root': tmp_path}
    for name in (None, 'a.txt', 'x/b.txt', 'x/.c.png'):
        if name:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        text = refusal(tool, change)
        assert f'{tmp_path}/ has no image' in text or (
            f'{tmp_path} has no image' in text
        )
        assert '.bmp, .jpeg, .jpg' in text and f'{where}.data_root' in text
    Image.new('RGB', (9, 9)).save(tmp_path / 'd.png')
    text = refusal(tool, change)
    assert f'no folder for each class. Set {where}.with_label=False' in text


def test_list_files_that_do_not_exist_or_are_empty(tool, tmp_path):
    where, path = f'{DATASET}.source.ann_file', tmp_path / 'list.txt'
    assert refusal(tool, {where: path}) == (
        f'There is no list file {path} ({where}).'
    )
    path.touch()
    text = refusal(tool, {where: path})
    assert text == f'The list file {path} is empty ({where}).'


def test_own_classes_under_the_name_of_imagenet(tool, images):
    change = {f'{DATASET}.source.type': 'ImageNet'}
    text = refusal(tool, change)
    assert '2 class folders, but ImageNet has 1,000 classes' in text
    assert f"Set {DATASET}.source.type='CustomDataset'" in text


def test_a_data_set_smaller_than_the_batch(tool):
    text = refusal(tool, {'train_dataloader.batch_size': 9})
    assert 'have 8 images, smaller than one batch: 9 on each of 1' in text
    assert 'Lower train_dataloader.batch_size' in text


def test_fewer_images_than_processes(tool, monkeypatch):
    monkeypatch.setattr(
        'mim_plugins.datasets.samplers.get_dist_info', lambda: (0, 9)
    )
    text = refusal(tool, {})
    assert '8 images cannot be shared by 9 processes; use at most 8' in text


@pytest.mark.parametrize(
    'key, size',
    [
        (f'{DATASET}.views.local.size', '17'),
        (f'{DATASET}.views.global1.size', '(32, 36)'),
        ('model.student.img_size', '30'),
        ('val_dataloader.dataset.pipeline.2.crop_size', '28'),
    ],
)
def test_sizes_that_the_patches_do_not_divide(key, size, tool):
    text = refusal(tool, {key: size})
    assert text.startswith(f'{key} is ')
    assert 'does not divide into patches of 8x8 (model.student.patch' in text


def test_masks_for_other_patches(tool):
    text = refusal(tool, {f'{DATASET}.mask.patch_size': 4})
    assert text.endswith('(model.student.patch_size): make them equal.')


@pytest.mark.parametrize(
    'key',
    [
        'model.student.in_channels',
        f'{DATASET}.load.channels',
        'val_dataloader.dataset.pipeline.0.channels',
    ],
)
def test_numbers_of_channels_that_differ(key, tool):
    changes = {key: 4}
    if 'load' in key and 'val' not in key:
        changes[f'{DATASET}.load.type'] = 'LoadImage'
    text = refusal(tool, changes)
    assert f'{key} is 4' in text and 'data_preprocessor.mean is 3' in text


@pytest.mark.parametrize('key', ['mean', 'std'])
def test_means_of_another_number_than_the_channels(key, tool):
    key = f'model.data_preprocessor.{key}'
    text = refusal(tool, {key: '[1,2]'})
    assert f'the length of {key} is 2' in text
    assert 'model.student.in_channels is 3' in text


@pytest.mark.parametrize(
    'key, reader, hint',
    [
        ('model.student.patch_sise', 'MaskedVisionTransformer', 'patch_size'),
        ('model.student.foo', 'MaskedVisionTransformer', None),
        (f'{DATASET}.views.local.solarise', f'{DATASET}.views.local',
         'solarize'),
        (f'{DATASET}.source.foo', 'CustomDataset', None),
        ('default_hooks.nmi.foo', 'NMIHook', None),
        ('optim_wrapper.foo', 'PretrainOptimWrapper', None),
        ('optim_wrapper.optimizer.foo', 'AdamW', None),
        ('default_hooks.schedules.schedules.lr.foo', 'CosineSchedule', None),
        ('val_dataloader.foo', 'val_dataloader', None),
    ],
)  # fmt: skip
def test_keys_that_a_constructor_refuses(key, reader, hint, tool):
    text = refusal(tool, {key: 1}, '--dry-run')
    expected = f"{key}: {reader} has no key '{key.rpartition('.')[2]}'."
    assert text == expected + (f" Did you mean '{hint}'?" if hint else '')


def test_a_key_like_a_known_one_is_warned_of(tool, monkeypatch):
    warned = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warned.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)
    slips = {'randomnes.seed': 1, 'env_cfg.cudnn_bench': True}
    tool(slips, '--dry-run')
    monkeypatch.setenv('RANK', '1')  # only one process says it
    tool(slips, '--dry-run')
    logger.removeHandler(handler)
    assert warned == [
        "randomnes: the config has no key 'randomnes'. "
        "Did you mean 'randomness'?",
        "env_cfg.cudnn_bench: env_cfg has no key 'cudnn_bench'. "
        "Did you mean 'cudnn_benchmark'?",
    ]


def test_checkpoints_of_another_size_or_another_kind(tool, tmp_path):
    checkpoint = tool({}) / 'epoch_1.pth'
    wider = {'model.student.arch.embed_dims': 24}
    for arguments in (['--resume'], ['--resume', str(checkpoint)]):
        text = refusal(tool, wider, *arguments)
        assert 'weights have another shape (first: ' in text
        assert str(checkpoint) in text and 'Nothing was loaded' in text
    text = refusal(tool, {**wider, 'load_from': checkpoint})
    assert 'weights have another shape (first: ' in text
    # a part of a network will do, another network will not
    deeper = {'model.student.arch.num_layers': 2}
    assert 'of the model are not in the file' in refusal(
        tool, deeper, '--resume'
    )
    tool({**deeper, 'load_from': checkpoint})
    other = tmp_path / 'other.pth'
    torch.save({'state_dict': {'conv.weight': torch.ones(1)}}, other)
    text = refusal(tool, {'load_from': other})
    assert 'holds no vision transformer' in text


def test_unreadable_images_are_replaced_listed_and_limited(
    tool, tmp_path, capsys
):
    root = make_images(tmp_path / 'some', 12)
    broken = root / 'class0' / '2.png'
    broken.write_bytes(broken.read_bytes()[:100])
    change = {f'{DATASET}.source.data_root': root}
    run = tool(change)
    listed = read_list(str(run / LIST_NAME))
    assert list(listed) == [str(broken)]
    out = ''.join(capsys.readouterr())
    assert f'Unreadable image, replaced by another: {broken}: ' in out
    assert (run / 'epoch_1.pth').is_file()
    strict = {**change, 'default_hooks.unreadable.max_share': 0}
    text = refusal(tool, strict)
    assert 'max_share=0 allows' in text and str(run / LIST_NAME) in text
    text = refusal(tool, {**change, f'{DATASET}.replacements': 0})
    assert text.startswith(f'could not read {broken}: ')
    second = root / 'class1' / '3.png'
    second.write_bytes(b'')
    text = refusal(tool, change)
    assert '2 of ' in text and 'max_share=0.01 allows' in text
    assert set(read_list(str(run / LIST_NAME))) == {str(broken), str(second)}


@pytest.mark.full
@pytest.mark.parametrize('share, code', [(0.5, 0), (0.01, 1)])
def test_processes_share_a_list_and_stop_together(
    share, code, images, tmp_path
):
    """One process stops, the launcher ends the other that waits for it."""
    root = make_images(tmp_path / 'images', 24)
    broken = [root / 'class0' / f'{i}.png' for i in (0, 2, 4, 6)]
    for path in broken:
        path.write_bytes(b'')
    command = [
        'bash', 'tools/dist_train.sh', 'configs/ibot/ibot_demo.py', '2',
        '--work-dir', str(tmp_path / 'run'), '--cfg-options',
        *(f'{key}={value}' for key, value in settings(images).items()),
        f'{DATASET}.source.data_root={root}',
        f'default_hooks.unreadable.max_share={share}',
    ]  # fmt: skip
    variables = {
        'VIRTUAL_ENV': sys.prefix,
        'PORT': '29641',
        'CUDA_VISIBLE_DEVICES': '',
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
    out = done.stdout + done.stderr
    assert bool(done.returncode) == bool(code), out[-3000:]
    lines = (tmp_path / 'run' / LIST_NAME).read_text().splitlines()
    listed = sorted(line.partition('\t')[0] for line in lines)
    assert len(set(listed)) == len(listed)
    if code:
        assert re.search(
            r'^TooManyUnreadable: \d of \d+ images', out, re.MULTILINE
        )
    else:
        assert listed == sorted(map(str, broken))
        for path in broken:  # warned of in the log of the first process
            warning = f'Unreadable image, replaced by another: {path}: '
            assert out.count(warning) == 1


def test_an_unreadable_image_of_the_evaluation_is_an_error(tool, tmp_path):
    root = make_images(tmp_path / 'val', 4)
    broken = root / 'class0' / '2.png'
    broken.write_bytes(b'')
    text = refusal(
        tool,
        {
            'val_dataloader.dataset.data_root': root,
            'val_dataloader.num_workers': 1,
        },
    )
    assert text.startswith(f'could not read {broken}: ')
