import json

import pytest
import torch
from mmengine.hooks import Hook
from toy_runs import LENGTH, hook_of, make_images, toy_runner

from mim_plugins.engine import AtomicCheckpointHook, DeferredRuntimeInfoHook
from mim_plugins.engine.hooks.runtime_info_hook import to_host


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('data') / 'images')


class Watch(Hook):
    """Lengths of the log at moments when somebody may read it."""

    priority = 'VERY_LOW'

    def __init__(self):
        self.lengths = {}

    def note(self, runner, when):
        log = runner.message_hub.log_scalars.get('train/loss_patch')
        length = 0 if log is None else len(log.data[0])
        self.lengths.setdefault(when, []).append(length)

    def after_train_iter(self, runner, batch_idx, *args, **kwargs):
        self.note(runner, 'iteration')

    def after_train_epoch(self, runner):
        self.note(runner, 'epoch')

    def before_save_checkpoint(self, runner, checkpoint):
        history = checkpoint['message_hub']['log_scalars']['train/loss_patch']
        self.lengths.setdefault('file', []).append(len(history.data[0]))


def run(folder, images, kind, hooks=(), **options):
    watch = Watch()
    runner = toy_runner(
        folder,
        images,
        hooks=[watch, *hooks],
        **{
            'default_hooks.runtime_info.type': kind,
            'train_cfg.max_epochs': 2,
            'log_processor.window_size': 2,
            **options,
        },
    )
    runner.train()
    return runner, watch.lengths


def logged(folder):
    (path,) = folder.glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        for name in ('time', 'data_time'):
            row.pop(name, None)
    return rows


@pytest.mark.parametrize(
    'interval',
    [
        pytest.param(1, marks=pytest.mark.full),
        2,
        pytest.param(3, marks=pytest.mark.full),
        100,
    ],
)
def test_the_log_is_that_of_mmengine(images, tmp_path, interval):
    """Lines, windows and the whole history, of two epochs."""
    histories, lines = [], []
    for kind in ('RuntimeInfoHook', 'DeferredRuntimeInfoHook'):
        runner, _ = run(
            tmp_path / kind,
            images,
            kind,
            **{'default_hooks.logger.interval': interval},
        )
        histories.append(
            {
                key: [part.tolist() for part in log.data]
                for key, log in runner.message_hub.log_scalars.items()
                if not key.endswith('time')
            }
        )
        lines.append(logged(tmp_path / kind))
    assert histories[0] == histories[1]
    assert len(histories[0]['train/loss_cls'][0]) == 2 * LENGTH
    assert lines[0] == lines[1]
    with_loss = sum('loss' in row for row in lines[0])
    assert with_loss == {1: 10, 2: 4, 3: 2, 100: 2}[interval]


def test_nothing_is_written_before_somebody_reads_it(images, tmp_path):
    _, lengths = run(tmp_path, images, 'DeferredRuntimeInfoHook')
    assert lengths['iteration'] == [0, 0, 3, 3, 3, 5, 5, 8, 8, 8]
    assert lengths['epoch'] == lengths['file'] == [5, 10]


@pytest.mark.parametrize('hook', ['AtomicCheckpointHook', 'CheckpointHook'])
def test_checkpoints_by_iteration_have_the_whole_log(images, tmp_path, hook):
    options = {
        'default_hooks.checkpoint.type': hook,
        'default_hooks.checkpoint.by_epoch': False,
        'default_hooks.checkpoint.interval': 4,
        'default_hooks.logger.interval': 100,
    }
    _, lengths = run(tmp_path, images, 'DeferredRuntimeInfoHook', **options)
    assert lengths['file'] == [4, 8, 10]


def test_a_checkpoint_out_of_turn_has_the_whole_log(images, tmp_path):
    """As that of a signal."""

    class Interrupt(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, batch_idx, *args, **kwargs):
            if batch_idx == 1:
                hook_of(runner, AtomicCheckpointHook).save_interim(runner)

    kind = 'DeferredRuntimeInfoHook'
    _, lengths = run(tmp_path, images, kind, hooks=[Interrupt()])
    assert lengths['file'] == [2, 5, 7, 10]


def test_the_default_hooks_have_it(images, tmp_path):
    runner = toy_runner(tmp_path, images)
    assert hook_of(runner, DeferredRuntimeInfoHook)


def test_numbers_of_every_kind():
    values = [
        torch.tensor(0.1),
        torch.tensor([2**53], dtype=torch.int64),
        0.2,
        torch.tensor(1 / 3, dtype=torch.float64),
        torch.tensor(0.3, dtype=torch.bfloat16),
        torch.tensor(0.4),
    ]
    expected = [v.item() if isinstance(v, torch.Tensor) else v for v in values]
    assert to_host(values) == expected
    assert to_host([]) == []


def test_an_entry_that_is_no_number():
    with pytest.raises(ValueError, match=r'one number.*\(2,\)'):
        to_host([torch.ones(2)])
