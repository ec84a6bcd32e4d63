"""Runs whose loss becomes NaN or infinite: what stops, stays and is kept."""

import json
import os
import subprocess
import sys

import pytest
import torch
from mmengine.hooks import Hook
from toy_runs import (
    ROOT,
    SnapshotHook,
    assert_equal,
    hook_of,
    in_processes,
    make_images,
    toy_config,
    toy_runner,
)

from mim_plugins.checkpoints import CheckpointError, load_file
from mim_plugins.engine import NonFiniteHook, NonFiniteLoss
from mim_plugins.engine.optimizers.precision import autocast_works
from mim_plugins.engine.replay import replay

WHITE = 13  # in iteration 4 of 5; in rank 1 of 2
BY_ITERATION = {
    'default_hooks.checkpoint.by_epoch': False,
    'default_hooks.checkpoint.interval': 2,
}
NEEDS_FP16 = pytest.mark.skipif(
    not autocast_works('cpu', torch.float16),
    reason='autocast to float16 does not work on this device',
)
# A gradient that is not finite is the loss scaler's matter with fp16.
CASES = [
    ('nan', 'fp32'),
    ('inf', 'bf16'),
    ('gradient', 'fp32'),
    pytest.param('nan', 'fp16', marks=NEEDS_FP16),
    pytest.param('nan', 'bf16', marks=pytest.mark.full),
    pytest.param('inf', 'fp32', marks=pytest.mark.full),
    pytest.param('gradient', 'bf16', marks=pytest.mark.full),
    pytest.param('inf', 'fp16', marks=[NEEDS_FP16, pytest.mark.full]),
]


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('data') / 'images', WHITE)


def run(folder, images, breaks='nan', hooks=(), **options):
    """A run that must stop; its runner, states and message."""
    snapshots = SnapshotHook()
    runner = toy_runner(
        folder,
        images,
        hooks=[snapshots, *hooks],
        **{
            'model.objectives.cls.type': 'FragileLoss',
            'model.objectives.cls.breaks': breaks,
            'default_hooks.freeze_last_layer.epochs': 0,
            **options,
        },
    )
    with pytest.raises(NonFiniteLoss) as caught:
        runner.train()
    return runner, snapshots.states, str(caught.value)


def kept(folder, name):
    return load_file(str(folder / 'non_finite' / name))


def assert_kept(folder, iteration, good):
    """The saved state is that good one, bit by bit."""
    state = kept(folder, f'iter_{iteration}/state.pth')
    assert_equal(state['model'], good['model'])
    for name in ('state', 'loss_scaler'):
        assert_equal(
            state['optimizer'].get(name), good['optimizer'].get(name), name
        )


@pytest.mark.parametrize('breaks, precision', CASES)
def test_a_run_stops_and_keeps_what_explains_it(
    images, tmp_path, breaks, precision
):
    options = {
        'optim_wrapper.precision': precision,
        'default_hooks.schedules.schedules.patch_temperature.warm': 0.07,
        'model.student.drop_path_rate': 0.5,
        **BY_ITERATION,
    }
    if precision == 'fp16':
        options['optim_wrapper.scaler'] = {'init_scale': 1.0}
    runner, states, message = run(tmp_path, images, breaks, **options)
    assert runner.iter == 3  # no checkpoint of iteration 4, nor a fifth
    assert_kept(tmp_path, 4, states[3])
    assert_equal(states[4]['model'], states[3]['model'])
    assert not torch.equal(
        states[3]['model']['student.cls_token'],
        states[2]['model']['student.cls_token'],
    )
    assert [path.name for path in tmp_path.glob('*.pth')] == ['iter_2.pth']
    assert (tmp_path / 'last_checkpoint').read_text().endswith('iter_2.pth')
    folder = tmp_path / 'non_finite' / 'iter_4'
    part = {'gradient': 'the norm of its gradient'}
    assert part.get(breaks, f'loss_cls = {breaks} (rank 0)') in message
    assert 'In iteration 4 ' in message and str(folder) in message
    report = json.loads((folder / 'rank_0.json').read_text())
    assert [os.path.basename(s['file']) for s in report['samples']] == [
        '12.png', '13.png', '14.png', '15.png',
    ]  # fmt: skip
    again = replay(runner.cfg, folder)
    assert_same_losses(again, report)
    number = again['gradient_norm' if breaks == 'gradient' else 'loss_cls']
    assert not torch.tensor(number).isfinite()


def assert_same_losses(again, report):
    for name, value in report['losses'].items():
        assert str(again[name]) == str(value), name


@pytest.mark.parametrize('by_epoch', [False, True])
def test_nothing_is_saved_by_the_hook_of_mmengine_either(
    images, tmp_path, by_epoch
):
    """Logged at 3 only."""
    options = {
        'default_hooks.checkpoint.type': 'CheckpointHook',
        'default_hooks.checkpoint.by_epoch': by_epoch,
        'default_hooks.checkpoint.interval': 1 if by_epoch else 4,
    }
    _, states, _ = run(tmp_path, images, **options)
    assert len(states) - 1 == (5 if by_epoch else 4)
    assert not list(tmp_path.glob('*.pth'))


def test_the_batch_is_the_one_that_was_used(images, tmp_path):
    class Remember(Hook):
        batches = []

        def after_train_iter(self, runner, batch_idx, data_batch, outputs):
            self.batches.append(data_batch['inputs'])

    run(
        tmp_path,
        images,
        hooks=[Remember()],
        **{
            'train_dataloader.dataset.views.global1.gray': 0.5,
            'train_dataloader.sampler.seed': 5,
        },
    )
    batch = kept(tmp_path, 'iter_4/batch_rank0.pth')
    assert_equal(batch['inputs'], Remember.batches[3])
    assert [key[1] for key in batch['sample_keys']] == [5] * 4


@pytest.mark.parametrize('white', [9, 13])
def test_a_micro_batch_of_accumulated_gradients(tmp_path, white):
    """Iteration 3 or 4, the first or the second of the second step."""
    images = make_images(tmp_path / 'images', white)
    options = {
        'optim_wrapper.accumulative_counts': 2,
        'model.head.norm': 'bn',
        'default_hooks.logger.interval': 100,
    }
    _, states, _ = run(tmp_path / 'run', images, **options)
    assert len(states) == 6  # found at the end of the epoch
    assert_kept(tmp_path / 'run', white // 4 + 1, states[2])
    assert not list((tmp_path / 'run').glob('*.pth'))


def test_a_check_between_two_optimizer_steps(images, tmp_path):
    """The statistics of batch norm have moved with each micro-batch."""
    options = {
        'optim_wrapper.accumulative_counts': 4,
        'model.head.norm': 'bn',
        'default_hooks.non_finite.interval': 1,
    }
    images = make_images(tmp_path / 'images', 5)
    runner, states, _ = run(tmp_path / 'run', images, **options)
    assert runner.iter == 1
    moved = states[2]['model']['head.mlp.1.running_mean']
    assert not torch.equal(
        moved, states[0]['model']['head.mlp.1.running_mean']
    )
    assert_kept(tmp_path / 'run', 2, states[0])


def test_the_first_iteration(tmp_path):
    images = make_images(tmp_path / 'images', 0)
    _, states, message = run(tmp_path / 'run', images)
    assert 'In iteration 1 ' in message
    state = kept(tmp_path / 'run', 'iter_1/state.pth')
    assert_equal(state['model'], states[0]['model'])


def run_in_process(rank, folder, images):
    """Logged at 3 and 5, a checkpoint due at 4; the gradient is finite."""
    options = {
        'model.head.norm': 'bn',
        'model.student.drop_path_rate': 0.5,
        **BY_ITERATION,
    }
    runner, states, message = run(
        folder, images, 'inf', processes=2, **options
    )
    return {
        'iter': runner.iter,
        'states': states,
        'message': message,
        'cfg': runner.cfg,
        'again': replay(runner.cfg, folder / 'non_finite' / 'iter_4'),
    }


def test_all_processes_stop_when_one_has_it(images, tmp_path):
    work_dir = tmp_path / 'run'
    first, second = in_processes(run_in_process, tmp_path, work_dir, images)
    assert first['iter'] == second['iter'] == 3
    assert first['message'] == second['message']
    assert 'loss_cls = inf (rank 1)' in first['message']
    assert '(rank 0)' not in first['message']
    for process in (first, second):
        good, last = process['states'][3:5]
        assert_equal(last['model'], good['model'])
        assert_equal(last['optimizer']['state'], good['optimizer']['state'])
        assert_kept(work_dir, 4, good)
    assert [path.name for path in work_dir.glob('*.pth')] == ['iter_2.pth']
    folder = work_dir / 'non_finite' / 'iter_4'
    files = []
    for rank, process in enumerate((first, second)):
        report = json.loads((folder / f'rank_{rank}.json').read_text())
        assert report['rank'] == rank and report['processes'] == 2
        files.append([s['index'] for s in report['samples']])
        assert_same_losses(process['again'], report)
    assert files == [[12, 14], [13, 15]]
    # alone, without the other process's part of the batch norm
    losses = [replay(first['cfg'], folder, rank)['loss'] for rank in range(2)]
    assert torch.tensor(losses).isfinite().tolist() == [True, False]


def test_the_command_ends_with_a_sentence_and_replays(images, tmp_path):
    """A learning rate at which every model breaks."""
    config = tmp_path / 'config.py'
    toy_config(
        tmp_path / 'run',
        images,
        **{'default_hooks.schedules.schedules.lr.base': 1e30},
    ).dump(config)
    done = command(config)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith('NonFiniteLoss: In iterat')
    assert 'Traceback' not in done.stderr
    (folder,) = (tmp_path / 'run' / 'non_finite').iterdir()
    done = command(config, '--replay', str(folder))
    assert done.returncode == 0, done.stderr
    assert 'Batch of rank 0: loss nan, loss_cls nan' in done.stdout


def test_a_folder_to_replay_that_is_not_there(images, tmp_path):
    with pytest.raises(CheckpointError, match='nowhere'):
        replay(toy_config(tmp_path, images), tmp_path / 'nowhere')


def command(*args):
    return subprocess.run(
        [sys.executable, 'tools/train.py', *map(str, args)],
        cwd=ROOT,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_batch_without_keys_is_said(images, tmp_path):
    class Forget(Hook):
        priority = 'HIGHEST'

        def before_train_iter(self, runner, batch_idx, data_batch):
            for sample in data_batch['data_samples']:
                sample.pop('sample_key')

    _, states, message = run(tmp_path, images, hooks=[Forget()])
    assert 'could not save everything' in message and 'sample_key' in message
    assert_kept(tmp_path, 4, states[3])


def test_other_optimizer_wrappers_are_named(images, tmp_path, caplog):
    runner = toy_runner(tmp_path, images)
    del runner.optim_wrapper  # a config until training begins

    class Plain:
        pass

    said = []
    runner.optim_wrapper = Plain()
    runner.logger.warning = said.append
    hook_of(runner, NonFiniteHook).before_train(runner)
    assert said[0].startswith('Plain does not watch for losses')
    hook_of(runner, NonFiniteHook).after_train_epoch(runner)


@pytest.mark.parametrize(
    'moment', ['after_train_epoch', 'before_val', 'before_checkpoint']
)
def test_it_is_checked_at(moment, monkeypatch):
    hook, checked = NonFiniteHook(), []
    monkeypatch.setattr(hook, 'check', checked.append)
    getattr(hook, moment)('runner')
    assert checked == ['runner']


def test_an_interval_of_nothing():
    with pytest.raises(ValueError, match='at least 1 iteration, got 0'):
        NonFiniteHook(interval=0)
