"""What is kept, what is removed when, and what is resumed from."""

import os
import re
from pathlib import Path

import pytest
import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import CheckpointLoader
from mmpretrain.registry import HOOKS
from toy_features import log_of, saving_runner

from mim_plugins.checkpoints import CheckpointError
from mim_plugins.compat import read_checkpoints_safely
from mim_plugins.engine import AtomicCheckpointHook
from mim_plugins.engine.checkpoint_files import (
    PART,
    AtomicLocalBackend,
    check_whole,
)

pytestmark = pytest.mark.usefixtures('safe_reading')


@pytest.fixture(autouse=True)
def safe_loader(monkeypatch):
    """Upstream's mmengine cannot read its own checkpoints otherwise."""
    schemes = dict(CheckpointLoader._schemes)
    monkeypatch.setattr(CheckpointLoader, '_schemes', schemes)
    read_checkpoints_safely()


def train(folder, *args, **kwargs):
    runner = saving_runner(folder, *args, **kwargs)
    runner.train()
    return runner


def files(folder):
    return sorted(path.name for path in folder.glob('*.pth'))


def flip(path):
    data = bytearray(path.read_bytes())
    middle = slice(len(data) // 4, len(data) // 2)
    data[middle] = bytes(255 - byte for byte in data[middle])
    path.write_bytes(data)


def test_is_mmengines_hook_under_another_name():
    assert HOOKS.get('AtomicCheckpointHook') is AtomicCheckpointHook
    assert HOOKS.get('CheckpointHook') is CheckpointHook


@pytest.mark.parametrize(
    'options',
    [
        {'backend_args': {'backend': 'petrel'}},
        {'file_client_args': {'backend': 'disk'}},
        {'out_dir': 's3://bucket/runs'},
    ],
)
def test_other_places_than_folders_are_refused(options):
    with pytest.raises(ValueError, match="use type='CheckpointHook'"):
        AtomicCheckpointHook(**options)


@pytest.mark.parametrize('keep, by_epoch', [(1, True), (2, False), (-1, True)])
def test_the_newest_are_kept(keep, by_epoch, tmp_path):
    interval = 1 if by_epoch else 6
    train(
        tmp_path,
        hook={'max_keep_ckpts': keep, 'interval': interval},
        by_epoch=by_epoch,
    )
    numbers = (1, 2, 3) if by_epoch else (6, 12, 18)
    name = 'epoch' if by_epoch else 'iter'
    expected = [f'{name}_{n}.pth' for n in numbers[-keep if keep > 0 else 0 :]]
    assert files(tmp_path) == sorted(expected)
    pointer = (tmp_path / 'last_checkpoint').read_text()
    assert pointer == str(tmp_path / expected[-1])


def test_an_old_file_goes_after_the_new_one_is_whole(tmp_path, monkeypatch):
    unlink, removed = Path.unlink, []

    def watch(path, **options):
        if path.suffix == '.pth':
            newest = max(path.parent.glob('*.pth'), key=os.path.getmtime)
            pointer = (path.parent / 'last_checkpoint').read_text()
            check_whole(newest)
            assert pointer == str(newest) and path != newest
            removed.append(path.name)
        unlink(path, **options)

    monkeypatch.setattr(Path, 'unlink', watch)
    train(tmp_path, hook={'max_keep_ckpts': 1})
    assert removed == ['epoch_1.pth', 'epoch_2.pth']


def test_the_former_best_goes_after_the_new_one_is_whole(
    tmp_path, monkeypatch
):
    finish, kept = AtomicLocalBackend.remove_outdated, []

    def watch(backend):
        if backend.outdated:
            best = sorted(tmp_path.glob('best_*.pth'))
            kept.append([path.name for path in best])
            for path in best:
                check_whole(path)
        finish(backend)

    def watch_saving(self, runner, *args, **options):
        saved.append(sorted(p.name for p in tmp_path.glob('best_*')))
        write(self, runner, *args, **options)

    write, saved = AtomicCheckpointHook._write, []
    monkeypatch.setattr(AtomicCheckpointHook, '_write', watch_saving)
    monkeypatch.setattr(AtomicLocalBackend, 'remove_outdated', watch)
    monkeypatch.setattr(
        'mim_plugins.evaluation.KNNAccuracy.evaluate_features',
        lambda *args: {'score': next(scores)},
    )
    scores = iter([1.0, 2.0, 1.5])
    train(tmp_path, hook={'save_best': 'score', 'rule': 'greater'})
    names = [f'best_score_epoch_{n}.pth' for n in (1, 2)]
    assert kept == [names]
    # A checkpoint that knows the new one is saved after the old one went.
    assert saved == [[], names[:1], names[:1], names[1:], names[1:]]


def test_a_checkpoint_from_after_the_validation_does_not_repeat_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        'mim_plugins.evaluation.KNNAccuracy.evaluate_features',
        lambda *args: calls.append(args) or {'score': len(calls)},
    )
    calls = []
    hook = {'save_best': 'score', 'rule': 'greater'}
    train(tmp_path, 1, hook)
    train(tmp_path, 2, hook, resume=True)
    assert len(calls) == 2


def test_resuming_removes_what_a_kill_left(tmp_path):
    """Killed between writing the second and removing the first."""
    hook = {'max_keep_ckpts': 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AtomicCheckpointHook, '_remove', lambda *_: None)
        train(tmp_path, 2, hook)
    assert files(tmp_path) == ['epoch_1.pth', 'epoch_2.pth']
    (tmp_path / f'epoch_3.pth{PART}').touch()
    train(tmp_path, 2, hook, resume=True)
    assert files(tmp_path) == ['epoch_2.pth']
    assert not list(tmp_path.glob(f'*{PART}'))
    assert f'Removed the unfinished file epoch_3.pth{PART}' in log_of(tmp_path)


def test_resuming_removes_interim_checkpoints_that_a_kill_left(tmp_path):
    hooks = [{'type': 'SaveInterimHook', 'iteration': n} for n in (2, 4)]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(AtomicCheckpointHook, '_remove', lambda *_: None)
        hooks.append({'type': 'FailHook', 'iteration': 5})
        train(tmp_path, 1, custom_hooks=hooks)
    assert files(tmp_path) == ['iter_2.pth', 'iter_4.pth']
    train(tmp_path, 1, resume=True)
    assert files(tmp_path) == ['epoch_1.pth']


def test_a_damaged_newest_is_named_and_the_one_before_used(tmp_path):
    train(tmp_path, 2)
    expected = torch.load(tmp_path / 'epoch_2.pth', weights_only=False)
    flip(tmp_path / 'epoch_2.pth')
    runner = train(tmp_path, 2, resume=True)
    said = re.escape(f'{tmp_path}/epoch_2.pth') + '.*before it is tried'
    assert re.search(said, log_of(tmp_path))
    assert f'Resuming from {tmp_path}/epoch_1.pth' in log_of(tmp_path)
    assert runner.iter == expected['meta']['iter']
    check_whole(tmp_path / 'epoch_2.pth')


@pytest.mark.full
def test_all_damaged_is_an_error(tmp_path):
    train(tmp_path, 2)
    for name in files(tmp_path):
        flip(tmp_path / name)
    with pytest.raises(CheckpointError, match='No checkpoint in .* can be'):
        train(tmp_path, 3, resume=True)


def test_a_named_checkpoint_is_checked(tmp_path):
    train(tmp_path, 2)
    flip(tmp_path / 'epoch_1.pth')
    named = str(tmp_path / 'epoch_1.pth')
    with pytest.raises(CheckpointError, match='epoch_1.pth is'):
        train(tmp_path, 3, resume=True, load_from=named)


def test_without_checkpoints_it_starts_afresh(tmp_path):
    runner = train(tmp_path, 1, resume=True)
    assert f'Nothing to resume from in {tmp_path}' in log_of(tmp_path)
    assert runner.epoch == 1


def test_a_run_starts_from_load_from_and_goes_on_by_itself(tmp_path):
    first, second = tmp_path / 'first', tmp_path / 'second'
    train(first, 1)
    start = str(first / 'epoch_1.pth')
    options = {'resume': 'auto', 'load_from': start}
    runner = train(second, 1, **options)
    assert f'Nothing to resume from in {second}' in log_of(second)
    assert f'Load checkpoint from {start}' in log_of(second)
    assert runner.epoch == 1
    runner = train(second, 2, **options)
    assert f'Resuming from {second}/epoch_1.pth' in log_of(second)
    assert runner.epoch == 2


def test_another_folder_for_checkpoints_is_resumed_from(tmp_path):
    hook = {'out_dir': str(tmp_path / 'large')}
    train(tmp_path / 'run', 1, hook=hook)
    assert files(tmp_path / 'large' / 'run') == ['epoch_1.pth']
    train(tmp_path / 'run', 2, hook=hook, resume=True)
    assert 'large/run/epoch_1.pth' in log_of(tmp_path / 'run')


@HOOKS.register_module()
class FailHook(Hook):
    def __init__(self, iteration):
        self.iteration = iteration

    def before_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self.iteration:
            raise MemoryError


@HOOKS.register_module()
class SaveInterimHook(Hook):
    """Saves after an iteration, once."""

    def __init__(self, iteration):
        self.iteration = iteration

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self.iteration:
            saver = [h for h in runner.hooks if hasattr(h, 'save_interim')]
            saver[0].save_interim(runner)
            assert f'iter_{self.iteration}.pth' in files(Path(runner.work_dir))


@pytest.mark.parametrize('keep', [1, -1])
def test_an_interim_checkpoint_goes_with_the_next(keep, tmp_path):
    hooks = [{'type': 'SaveInterimHook', 'iteration': n} for n in (3, 8, 9)]
    train(tmp_path, 2, {'max_keep_ckpts': keep}, custom_hooks=hooks)
    expected = ['epoch_1.pth', 'epoch_2.pth']
    assert files(tmp_path) == expected[-keep if keep > 0 else 0 :]
