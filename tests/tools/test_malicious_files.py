"""No tool runs what is in a file that it reads."""

import argparse
import importlib.util
import io
import itertools
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.runner import CheckpointLoader
from PIL import Image

from mim_plugins.checkpoints import load_file, ours_to_ibot

ROOT = Path(__file__).parents[2]
ARCH = {
    'embed_dims': 12,
    'num_layers': 1,
    'num_heads': 3,
    'feedforward_channels': 12,
}
HEAD = {'out_dim': 8, 'hidden_dim': 8, 'bottleneck_dim': 4}
DALLE = {'group_count': 2, 'n_hid': 4, 'n_blk_per_group': 1, 'vocab_size': 8}


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


def write_pickle(path, content, attack):
    path.write_bytes(pickle.dumps({**content, 'meta': attack}))


def write_torch(path, content, attack):
    torch.save({**content, 'meta': attack}, path)


def write_nested(path, content, attack):
    moments = {'step': 3, 'exp_avg': [torch.zeros(2), attack]}
    optimizer = {'state': {0: moments}, 'param_groups': []}
    torch.save({**content, 'optimizer': optimizer}, path)


def write_legacy(path, content, attack):
    torch.save(
        {**content, 'meta': attack},
        path,
        _use_new_zipfile_serialization=False,
    )


def write_tar(path, content, attack):
    """The format of torch's first releases, read to this day."""
    with tarfile.open(path, 'w') as archive:
        for name in ('storages', 'tensors', 'pickle'):
            data = pickle.dumps(attack)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_torchscript(path, content, attack):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))


KINDS = {
    'pickle.pth': write_pickle,
    'torch.pth': write_torch,
    'nested.pth': write_nested,
    'legacy.pth': write_legacy,
    'renamed.safetensors': write_pickle,
    'tar.pth': write_tar,
    'script.pt': write_torchscript,
}
REASONS = {
    'renamed.safetensors': 'is no safetensors file',
    'script.pt': 'is a TorchScript archive',
}
# refused by --resume for having no checksums
NO_ARCHIVE = {'pickle.pth', 'legacy.pth', 'renamed.safetensors', 'tar.pth'}


def write(folder, kind, content):
    path, marker = folder / kind, folder / 'marker'
    KINDS[kind](path, content, Touch(marker))
    return path, marker


@pytest.fixture(scope='module', autouse=True)
def unformatted():
    """The layout of printed configs, half a tool's time, is left out."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ('yapf.yapflib.yapf_api', 'mmengine.config.config'):
            patch.setattr(
                f'{module}.FormatCode',
                lambda code, **_: (code, True),
                raising=False,
            )
        yield


@pytest.fixture(scope='module')
def configs(tmp_path_factory):
    """A tiny run on eight images, and two with frozen tokenizers."""
    folder = tmp_path_factory.mktemp('configs')
    rng = np.random.default_rng(0)
    for i in range(8):
        path = folder / 'images' / f'class{i % 2}' / f'{i}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (36, 36, 3), np.uint8)).save(path)
    images = str(folder / 'images')
    config = Config.fromfile(ROOT / 'configs' / 'ibot' / 'ibot_demo.py')
    loader = 'train_dataloader'
    config.merge_from_dict(
        {
            'model.student.arch': ARCH,
            'model.head': HEAD,
            f'{loader}.batch_size': 4,
            f'{loader}.num_workers': 0,
            f'{loader}.persistent_workers': False,
            f'{loader}.dataset.source.data_root': images,
            'val_dataloader.dataset.data_root': images,
            'val_cfg.bank_dataloader.dataset.data_root': images,
            'val_evaluator.k': [2],
            'train_cfg.max_epochs': 1,
            'default_hooks.checkpoint.interval': 1,
        }
    )
    config.test_dataloader = config.val_dataloader
    config.test_cfg = config.val_cfg
    config.test_evaluator = config.val_evaluator
    config.dump(folder / 'plain.py')
    config.default_hooks.schedules.schedules.patch_temperature = None
    backbone = dict(config.model.student)
    for name, tokenizer in (
        ('dino', {'type': 'FrozenTokenizer', 'backbone': backbone}),
        ('dalle', {'type': 'DALLETokenizer', 'encoder': DALLE}),
    ):
        if name == 'dino':
            tokenizer['head'] = dict(config.model.head)
        config.model.objectives.patch = {
            'type': 'TokenPrediction',
            'tokenizer': tokenizer,
            'loss': {'type': 'SoftCrossEntropy', 'temperature': 0.1},
        }
        config.dump(folder / f'{name}.py')
    return folder


@pytest.fixture
def call(configs, tmp_path, monkeypatch):
    """Calls a tool's main; its own environment variable does not help it."""
    schemes = dict(CheckpointLoader._schemes)
    monkeypatch.setattr(CheckpointLoader, '_schemes', schemes)
    monkeypatch.setattr('sys.path', __import__('sys').path.copy())
    monkeypatch.setenv('LOCAL_RANK', '0')
    monkeypatch.chdir(tmp_path)

    def run(tool, *arguments):
        path = ROOT / 'tools' / f'{tool}.py'
        spec = importlib.util.spec_from_file_location(f'{tool}_tool', path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
        spec.loader.exec_module(module)
        monkeypatch.delenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD')
        module.main([str(argument) for argument in arguments])

    return run


@pytest.fixture(scope='module')
def ours(configs, tmp_path_factory):
    """A checkpoint of a run of this project."""
    with pytest.MonkeyPatch.context() as patch:
        work_dir = tmp_path_factory.mktemp('ours')
        run = call.__wrapped__(configs, work_dir, patch)
        run('train', configs / 'plain.py', '--work-dir', work_dir)
        return work_dir / 'epoch_1.pth'


@pytest.fixture(scope='module')
def official(ours):
    """The same in the layout of the official code, with its extras."""
    state = load_file(ours)['state_dict']
    path = ours.parent / 'official.pth'
    content = {
        **ours_to_ibot(state, unplaced=[]),
        'epoch': np.int64(1),
        'args': argparse.Namespace(arch='vit_small', lr=np.float64(5e-4)),
        'loss': np.float32(2.0),
    }
    torch.save(content, path)
    return path


def pretrained(part, file):
    key = f'model.{part}.init_cfg'
    return [f'{key}.type=Pretrained', f'{key}.checkpoint={file}']


def arguments(way, file, configs, work_dir):
    """How a file gets into a tool, by the name of the way."""
    plain = configs / 'plain.py'
    train = ['train', plain, '--work-dir', work_dir]
    options = [*train, '--cfg-options']
    if way == 'resume the newest':
        newest = work_dir / 'epoch_9.pth'
        shutil.copy(file, newest)
        (work_dir / 'last_checkpoint').write_text(str(newest))
        return [*train, '--resume']
    if way == 'replay':
        shutil.copy(file, work_dir / 'state.pth')
        return [*train, '--replay', work_dir]
    if way in ('dino', 'dalle'):
        key = 'model.objectives.patch.tokenizer.checkpoint'
        train[1] = configs / f'{way}.py'
        return [*train, '--cfg-options', f'{key}={file}']
    untrained = ['test', plain, '--untrained', '--work-dir', work_dir]
    return {
        'load_from': [*options, f'load_from={file}'],
        'resume a file': [*train, '--resume', file],
        'student': [*options, *pretrained('student', file)],
        'head': [*options, *pretrained('head', file)],
        'test': ['test', plain, file, '--work-dir', work_dir],
        'test untrained': [*untrained, '--cfg-options',
                           *pretrained('head', file)],
        'export': ['export_backbone', file, work_dir / 'out.pth'],
        'convert': ['convert_checkpoint', file, work_dir / 'out.pth',
                    '--to', 'ibot'],
        'visualize': ['visualize_attention', plain, file],
    }[way]  # fmt: skip


WAYS = (
    *('load_from', 'resume a file', 'resume the newest', 'student', 'head'),
    *('dino', 'dalle', 'replay', 'test', 'test untrained'),
    *('export', 'convert', 'visualize'),
)
FAST = [(way, 'nested.pth') for way in WAYS] + [
    ('export', kind) for kind in KINDS if kind != 'nested.pth'
]
REST = [c for c in itertools.product(WAYS, KINDS) if c not in FAST]


@pytest.mark.parametrize(
    ('way', 'kind'),
    FAST + [pytest.param(*c, marks=pytest.mark.full) for c in REST],
)
def test_a_malicious_file_is_refused_and_does_nothing(
    way, kind, call, configs, ours, tmp_path
):
    work_dir = tmp_path / 'run'
    work_dir.mkdir()
    shutil.copy(ours, work_dir)  # a good one beside it changes nothing
    path, marker = write(tmp_path, kind, load_file(ours))
    with pytest.raises(SystemExit) as caught:
        call(*arguments(way, path, configs, work_dir))
    sentence = caught.value.code
    assert isinstance(sentence, str)  # so the exit code is 1
    assert '\n' not in sentence and sentence.partition(':')[0].isidentifier()
    if way == 'resume a file' and kind in NO_ARCHIVE:
        assert f'{path} is damaged' in sentence
    else:
        reasons = ('could run code', REASONS.get(kind, ''))
        assert 'not loaded' in sentence
        assert any(reason in sentence for reason in reasons if reason)
    assert not marker.exists()


@pytest.mark.parametrize('kind', sorted(set(KINDS) - {'script.pt'}))
def test_these_files_do_harm_a_reader_that_trusts_them(kind, tmp_path):
    path, marker = write(tmp_path, kind, {'state_dict': {}})
    if KINDS[kind] is write_pickle:
        pickle.loads(path.read_bytes())
    else:
        try:
            torch.load(path, weights_only=False)
        except TypeError:  # no such tar archive was ever written
            assert kind == 'tar.pth'
    assert marker.exists()


def test_files_of_this_project_are_read(call, configs, ours, tmp_path):
    for way in ('resume a file', 'test', 'visualize', 'export'):
        call(*arguments(way, ours, configs, tmp_path))
    from_it = f'load_from={ours}'
    call(*arguments('dino', ours, configs, tmp_path), from_it)


def test_official_files_are_read(call, configs, official, tmp_path):
    for way in ('export', 'convert'):
        call(*arguments(way, official, configs, tmp_path))
    command = arguments('load_from', official, configs, tmp_path)
    call(*command, *pretrained('student', official))
