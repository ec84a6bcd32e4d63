"""Files that are whole or not there; the newest whole one is found."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from mmengine.fileio import get_file_backend

from mim_plugins.checkpoints import CheckpointError, UnsafeCheckpoint
from mim_plugins.engine import checkpoint_files
from mim_plugins.engine.checkpoint_files import (
    BACKEND,
    PART,
    check_whole,
    newest_whole,
    remove_leftovers,
    write_atomically,
)

TEMPLATES = ('epoch_{}.pth', 'iter_{}.pth')


def save(folder, name, iteration, time='20260101_000000'):
    path = Path(folder, name)
    meta = {'iter': iteration, 'time': time}
    torch.save({'meta': meta, 'weights': torch.arange(1000.0)}, path)
    return path


def flip(path, where=0.5):
    """One bit of the stored weights."""
    data = bytearray(path.read_bytes())
    weights = torch.arange(1000.0).numpy().tobytes()
    data[data.find(weights) + int(where * len(weights))] ^= 1
    path.write_bytes(data)
    return path


def cut(path):
    os.truncate(path, path.stat().st_size // 2)
    return path


def empty(path):
    path.write_bytes(b'')
    return path


def text(path):
    path.write_text('not a checkpoint')
    return path


def find(folder, said=None):
    said = [] if said is None else said
    found = newest_whole(
        folder, folder / 'last_checkpoint', TEMPLATES, said.append
    )
    return found and found.name


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / 'deep' / 'file'
    for content in (b'old', b'new'):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ['file']


def test_mmengine_finds_the_backend(tmp_path):
    backend = get_file_backend(
        str(tmp_path), backend_args={'backend': BACKEND}
    )
    path = tmp_path / 'file'
    backend.put(b'bytes', path)
    backend.put_text('a text', tmp_path / 'text')
    assert (tmp_path / 'text').read_text() == 'a text'
    backend.remove(path)
    assert path.read_bytes() == b'bytes'
    backend.remove_outdated()
    assert not path.exists()


@pytest.mark.parametrize(
    'number, words',
    [
        (errno.ENOSPC, 'No space left.*It needs 0 MB.*Make room'),
        (errno.EACCES, 'Permission denied.*folder writable'),
    ],
)
def test_a_failure_leaves_the_old_file(number, words, tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    path = tmp_path / 'file'
    write_atomically(path, b'old')
    monkeypatch.setattr(checkpoint_files.os, 'fsync', fail)
    with pytest.raises(CheckpointError, match=words):
        write_atomically(path, b'new')
    assert path.read_bytes() == b'old'
    assert os.listdir(tmp_path) == ['file']


def test_only_our_own_leftovers_are_removed(tmp_path):
    for name in ('epoch_1.pth' + PART, 'epoch_1.pth', 'x.part', 'x.tmp'):
        (tmp_path / name).touch()
    assert remove_leftovers(tmp_path) == ['epoch_1.pth' + PART]
    assert sorted(os.listdir(tmp_path)) == ['epoch_1.pth', 'x.part', 'x.tmp']


def test_whole_files_pass(tmp_path):
    check_whole(save(tmp_path, 'epoch_1.pth', 5))


@pytest.mark.parametrize('harm', [flip, cut, empty, text, Path.unlink])
def test_damage_is_seen(harm, tmp_path):
    path = save(tmp_path, 'epoch_1.pth', 5)
    harm(path)
    with pytest.raises(CheckpointError, match=r'epoch_1\.pth is'):
        check_whole(path)


def test_the_latest_iteration_counts_whatever_the_name(tmp_path):
    save(tmp_path, 'epoch_9.pth', 45)
    save(tmp_path, 'epoch_10.pth', 50)
    assert find(tmp_path) == 'epoch_10.pth'
    save(tmp_path, 'iter_52.pth', 52)
    assert find(tmp_path) == 'iter_52.pth'
    save(tmp_path, 'epoch_11.pth', 55)
    assert find(tmp_path) == 'epoch_11.pth'


def test_other_files_are_no_checkpoints(tmp_path):
    for name in ('best_acc_epoch_9.pth', 'backbone.pth', 'epoch_x.pth'):
        save(tmp_path, name, 45)
    assert find(tmp_path) is None


@pytest.mark.parametrize('pointer', [None, '', 'epoch_1.pth', 'gone.pth'])
def test_the_pointer_is_not_needed(pointer, tmp_path):
    save(tmp_path, 'epoch_1.pth', 5, '20260101_000001')
    save(tmp_path, 'epoch_2.pth', 10, '20260101_000002')
    if pointer is not None:
        (tmp_path / 'last_checkpoint').write_text(pointer)
    assert find(tmp_path) == 'epoch_2.pth'


def test_an_earlier_run_in_the_folder_is_left_alone(tmp_path):
    save(tmp_path, 'epoch_7.pth', 35, '20260101_000000')
    save(tmp_path, 'epoch_2.pth', 10, '20260102_000000')
    (tmp_path / 'last_checkpoint').write_text('/moved/from/epoch_2.pth')
    said = []
    assert find(tmp_path, said) == 'epoch_2.pth'
    assert 'epoch_7.pth is of a later iteration' in said[0]


@pytest.mark.parametrize('harm', [flip, cut, empty, text])
def test_a_damaged_newest_file_is_named_and_passed_over(harm, tmp_path):
    save(tmp_path, 'epoch_1.pth', 5)
    save(tmp_path, 'epoch_2.pth', 10)
    harm(save(tmp_path, 'iter_12.pth', 12))
    said = []
    assert find(tmp_path, said) == 'epoch_2.pth'
    assert len(said) == 1 and 'iter_12.pth' in said[0]


def test_a_file_that_could_run_code_is_refused(tmp_path):
    """It is not damaged: somebody put it there."""
    save(tmp_path, 'epoch_1.pth', 5)
    torch.save(
        {'meta': {'iter': 9, 'time': shutil.rmtree}}, tmp_path / 'epoch_2.pth'
    )
    with pytest.raises(UnsafeCheckpoint, match='could run code'):
        find(tmp_path)


def test_nothing_but_damaged_files_is_an_error(tmp_path):
    for i in (1, 2):
        flip(save(tmp_path, f'epoch_{i}.pth', 5 * i))
    with pytest.raises(CheckpointError, match='epoch_2.pth, epoch_1.pth'):
        find(tmp_path)
