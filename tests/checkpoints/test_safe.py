import argparse
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.logging import HistoryBuffer, MessageHub

from mim_plugins.checkpoints import (
    CheckpointError,
    UnsafeCheckpoint,
    load_file,
)


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


class Evaluate(Touch):
    def __reduce__(self):
        return eval, (f'open({str(self.path)!r}, "w").close()',)


class Shell(Touch):
    def __reduce__(self):
        return os.system, (f'touch {self.path}',)


def weights():
    return {'layer.weight': torch.arange(6.0).reshape(2, 3)}


def write_torch(path, content):
    torch.save(content, path)


def write_legacy(path, content):
    torch.save(content, path, _use_new_zipfile_serialization=False)


def write_pickle(path, content):
    path.write_bytes(pickle.dumps(content))


def write_pickle_2(path, content):
    path.write_bytes(pickle.dumps(content, protocol=2))


writers = pytest.mark.parametrize(
    'write', [write_torch, write_legacy, write_pickle, write_pickle_2]
)


@writers
@pytest.mark.parametrize('attack', [Touch, Evaluate, Shell])
def test_malicious_file_is_refused_and_does_nothing(tmp_path, write, attack):
    path, marker = tmp_path / 'bad.pth', tmp_path / 'marker'
    write(path, {'state_dict': weights(), 'meta': attack(marker)})
    with pytest.raises(UnsafeCheckpoint, match='bad.pth was not loaded'):
        load_file(path)
    assert not marker.exists()
    # the same file is harmful to a reader that trusts it
    if write in (write_torch, write_legacy):
        torch.load(path, weights_only=False)
    else:
        pickle.loads(path.read_bytes())
    assert marker.exists()


def test_no_environment_variable_opens_the_door(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    path, marker = tmp_path / 'bad.pth', tmp_path / 'marker'
    torch.save({'meta': Evaluate(marker)}, path)
    with pytest.raises(UnsafeCheckpoint):
        load_file(path)
    assert not marker.exists()


def test_refusal_names_what_the_file_asked_for(tmp_path):
    path = tmp_path / 'bad.pth'
    torch.save({'meta': Evaluate(tmp_path / 'marker')}, path)
    with pytest.raises(
        UnsafeCheckpoint, match=r'GLOBAL (builtins\.)?eval'
    ) as error:
        load_file(path)
    assert 'add_safe_globals' not in str(error.value)


class StolenMethod:
    """Reaches for an attribute of an allowed class."""

    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def __reduce__(self):
        return getattr, (self.owner, self.name)


@pytest.mark.parametrize(
    ('owner', 'name'),
    [(HistoryBuffer, '__init__'), (argparse.Namespace, 'x')],
    ids=['history', 'namespace'],
)
def test_getattr_reaches_nothing_but_log_statistics(tmp_path, owner, name):
    path = tmp_path / 'bad.pth'
    torch.save({'meta': StolenMethod(owner, name)}, path)
    with pytest.raises(UnsafeCheckpoint, match=f'getattr of {name}'):
        load_file(path)


def test_torchscript_is_refused(tmp_path):
    path = tmp_path / 'clip.pt'
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with pytest.raises(UnsafeCheckpoint, match='TorchScript.*state dict'):
        load_file(path)


def test_the_oldest_archives_are_refused(tmp_path):
    path = tmp_path / 'old.pth'
    with tarfile.open(path, 'w') as archive:
        archive.addfile(tarfile.TarInfo('storages'))
    with pytest.raises(UnsafeCheckpoint, match='old.pth.*tar archive'):
        load_file(path)


def test_a_name_does_not_decide_what_a_file_is(tmp_path):
    path = tmp_path / 'file.safetensors'
    write_torch(path, weights())
    with pytest.raises(CheckpointError, match='no safetensors file.*pth'):
        load_file(path)


@pytest.mark.parametrize('write', [write_torch, write_legacy])
def test_reading_from_the_disk_changes_no_answer(tmp_path, write):
    good, bad = tmp_path / 'good.pth', tmp_path / 'bad.pth'
    write(good, weights())
    write(bad, {'meta': Touch(tmp_path / 'marker')})
    loaded = load_file(good, mmap=True)
    assert torch.equal(loaded['layer.weight'], weights()['layer.weight'])
    with pytest.raises(UnsafeCheckpoint):
        load_file(bad, mmap=True)


def test_a_flipped_bit_is_damage_and_no_attack(tmp_path):
    path = tmp_path / 'epoch_3.pth'
    torch.save({'args': argparse.Namespace(a=1)}, path)
    content = path.read_bytes()
    assert content.count(b'Namespace') == 1
    path.write_bytes(content.replace(b'Namespace', b'Namespabe'))
    with pytest.raises(CheckpointError, match='copy it again') as error:
        load_file(path)
    assert type(error.value) is CheckpointError


@pytest.mark.parametrize('place', range(1, 23))
def test_any_damage_at_the_end_of_an_archive_is_named(tmp_path, place):
    path = tmp_path / 'file.pth'
    torch.save(weights(), path)
    content = bytearray(path.read_bytes())
    content[-place] ^= 0xFF
    path.write_bytes(content)
    try:
        load_file(path)
    except CheckpointError as error:
        assert 'file.pth' in str(error)


def make_checkpoint():
    """What mmengine's Runner writes, with the official code's extras."""
    hub = MessageHub('test_safe')
    for i in range(4):
        hub.update_scalar('train/loss', float(i), count=2)
    hub.update_info('epoch', 3)
    return {
        'meta': {'epoch': 3, 'cfg': 'model = dict()', 'hook_msgs': {}},
        'state_dict': weights(),
        'message_hub': hub.state_dict(),
        'args': argparse.Namespace(arch='vit_small', lr=np.float64(5e-4)),
        'best': np.float32(0.5),
        'array': np.arange(3),
    }


@pytest.mark.parametrize('write', [write_torch, write_legacy])
def test_training_checkpoint_comes_back_whole(tmp_path, write):
    path = tmp_path / 'epoch_3.pth'
    write(path, make_checkpoint())
    loaded = load_file(path)
    assert torch.equal(
        loaded['state_dict']['layer.weight'], weights()['layer.weight']
    )
    assert loaded['args'] == argparse.Namespace(arch='vit_small', lr=5e-4)
    assert loaded['best'] == 0.5
    assert loaded['array'].tolist() == [0, 1, 2]
    history = loaded['message_hub']['log_scalars']['train/loss']
    assert type(history) is HistoryBuffer
    assert history.data[0].tolist() == [0, 1, 2, 3]
    assert history.mean() == pytest.approx(0.75)
    write(path, loaded)
    assert load_file(path)['meta'] == loaded['meta']


@pytest.mark.parametrize('module', ['numpy.core', 'numpy._core'])
def test_numpy_is_read_under_its_old_and_new_name(tmp_path, module):
    """Official files name numpy's module as it was called then."""
    saved, path = tmp_path / 'saved.pth', tmp_path / 'named.pth'
    torch.save({'best': np.float64(0.5), 'all': np.arange(3)}, saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(path, 'w') as out:
        for name in source.namelist():
            content = source.read(name)
            for known in (b'numpy._core.multi', b'numpy.core.multi'):
                content = content.replace(known, b'NUMPY')
            out.writestr(
                name, content.replace(b'NUMPY', module.encode() + b'.multi')
            )
    loaded = load_file(path)
    assert loaded['best'] == 0.5
    assert loaded['all'].tolist() == [0, 1, 2]


def test_log_statistics_of_a_file_are_not_installed(tmp_path):
    path = tmp_path / 'epoch_3.pth'
    history = HistoryBuffer([1.0], [1])
    before = dict(HistoryBuffer._statistics_methods)
    history._statistics_methods = {**before, 'mean': HistoryBuffer.max}
    torch.save({'history': history}, path)
    load_file(path)
    assert HistoryBuffer._statistics_methods == before


@pytest.mark.parametrize('torch_2_4', [False, True])
def test_allowances_end_with_the_call(tmp_path, monkeypatch, torch_2_4):
    if torch_2_4:  # it has no context manager for this
        monkeypatch.delattr(torch.serialization, 'safe_globals', False)
    path = tmp_path / 'file.pth'
    torch.save({'args': argparse.Namespace(a=1)}, path)
    before = set(torch.serialization.get_safe_globals())
    assert load_file(path)['args'].a == 1
    assert set(torch.serialization.get_safe_globals()) == before
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('whole')
    write_torch(folder / 'torch.pth', make_checkpoint())
    write_legacy(folder / 'legacy.pth', make_checkpoint())
    return folder


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(['torch', 'legacy']), share=st.floats(0, 0.99))
def test_half_downloaded_file_is_an_error(folder, name, share):
    content = (folder / f'{name}.pth').read_bytes()
    path = folder / 'partial.pth'
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match='partial.pth.*again') as error:
        load_file(path)
    assert type(error.value) is CheckpointError


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=80))
def test_any_bytes_give_a_checkpoint_error(folder, content):
    path = folder / 'noise.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match='noise.pth'):
        load_file(path)


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        (b'', 'is empty'),
        (b'<!DOCTYPE html><html>', 'web page'),
        (b'version https://git-lfs.github.com/spec/v1\n', 'git lfs pull'),
        (b'\x10\0\0\0\0\0\0\0{"a":{}}', 'safetensors'),
        (b'PK\x03\x04' + bytes(100), 'its end is missing'),
    ],
)
def test_wrong_kinds_of_file_are_told_apart(tmp_path, content, words):
    path = tmp_path / 'file.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        load_file(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(CheckpointError, match='none.pth is no file.*Check'):
        load_file(tmp_path / 'none.pth')
    with pytest.raises(CheckpointError, match='Download it first'):
        load_file('https://example.org/ibot.pth')
    with pytest.raises(CheckpointError, match='is a folder'):
        load_file(tmp_path)


def test_content_must_be_a_dict(tmp_path):
    torch.save(torch.zeros(2), tmp_path / 'file.pth')
    with pytest.raises(CheckpointError, match='holds a Tensor, not a dict'):
        load_file(tmp_path / 'file.pth')
