"""Signals are noted, answered between two steps, and given back."""

import os
import signal
import threading

import pytest
import torch
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS
from toy_features import log_of, saving_runner

from mim_plugins.engine import PreemptionHook
from mim_plugins.engine.hooks.preemption_hook import SIGNALS


@pytest.fixture(autouse=True)
def handlers():
    """Those that must be there again afterwards."""
    for number in SIGNALS:
        signal.signal(number, ours)
    yield
    found = [signal.signal(number, signal.SIG_DFL) for number in SIGNALS]
    assert found == [ours, ours]


def ours(number, frame):
    raise AssertionError('not caught')


@HOOKS.register_module()
class SignalHook(Hook):
    """Sends signals to its own process, or fails, in an iteration."""

    def __init__(self, iteration, numbers=(), error=False):
        self.iteration, self.numbers = iteration, numbers
        self.error = error

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self.iteration:
            for number in self.numbers:
                os.kill(os.getpid(), number)
            if self.error:
                raise ZeroDivisionError


def runner_of(folder, signals, preemption=None, **changes):
    hooks = [
        {'type': 'PreemptionHook', **(preemption or {})},
        {'type': 'SignalHook', **signals},
    ]
    return saving_runner(folder, 2, custom_hooks=hooks, **changes)


def stop(folder, signals, **changes):
    with pytest.raises(SystemExit) as error:
        runner_of(folder, signals, **changes).train()
    assert error.value.code == 75
    (path,) = folder.glob('iter_*.pth')
    return torch.load(path, weights_only=False)['meta']


def test_a_signal_saves_and_exits(tmp_path):
    meta = stop(tmp_path, {'iteration': 8, 'numbers': [signal.SIGUSR1]})
    assert (meta['epoch'], meta['iter']) == (1, 8)
    assert 'Got SIGUSR1' in log_of(tmp_path)


def test_mmengines_own_loops_are_left_as_well(tmp_path):
    meta = stop(
        tmp_path,
        {'iteration': 8, 'numbers': [signal.SIGTERM]},
        train_cfg={'type': 'EpochBasedTrainLoop', 'max_epochs': 2},
    )
    assert meta['iter'] == 8


def test_training_goes_on_to_the_interval(tmp_path):
    signals = {'iteration': 2, 'numbers': [signal.SIGTERM]}
    meta = stop(tmp_path, signals, preemption={'interval': 5})
    assert meta['iter'] == 5


def test_training_goes_on_to_the_end_of_the_step(tmp_path):
    meta = stop(
        tmp_path,
        {'iteration': 5, 'numbers': [signal.SIGTERM]},
        optim_wrapper={
            'type': 'PretrainOptimWrapper',
            'optimizer': {'type': 'SGD', 'lr': 0.01},
            'accumulative_counts': 4,
        },
    )
    assert meta['iter'] == 8


def test_nothing_is_saved_twice(tmp_path):
    runner = runner_of(
        tmp_path,
        {'iteration': 4, 'numbers': [signal.SIGTERM]},
        hook={'interval': 4},
        by_epoch=False,
    )
    saved = []
    save = runner.save_checkpoint
    runner.save_checkpoint = lambda *args, **kwargs: (
        saved.append(args[1]),
        save(*args, **kwargs),
    )
    with pytest.raises(SystemExit):
        runner.train()
    assert saved == ['iter_4.pth']


def test_handlers_are_given_back_after_training(tmp_path):
    runner_of(tmp_path, {'iteration': 99}).train()


def test_handlers_are_given_back_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError):
        runner_of(tmp_path, {'iteration': 2, 'error': True}).train()


def test_other_checkpoint_hooks_leave_the_signals_alone(tmp_path):
    signals = {'iteration': 2, 'numbers': [signal.SIGTERM]}
    runner = runner_of(tmp_path, signals, hook={'type': 'CheckpointHook'})
    with pytest.raises(AssertionError, match='not caught'):
        runner.train()
    assert "no checkpoint=dict(type='AtomicCheckpointHook')" in (
        log_of(tmp_path)
    )


def test_other_threads_leave_the_signals_alone(tmp_path):
    runner = runner_of(tmp_path, {'iteration': 99})
    thread = threading.Thread(target=runner.train)
    thread.start()
    thread.join()
    assert 'this is not the main thread' in log_of(tmp_path)
    assert runner.iter == 12


def test_the_interval_is_at_least_one():
    with pytest.raises(ValueError, match='interval must be at least 1'):
        PreemptionHook(interval=0)
