"""The hooks and the optimizer wrapper together, in a small mmengine run."""

import logging

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mim_plugins.engine import (
    Progress,
    ScheduleHook,
    cosine_schedule,
    progress,
    temperature_schedule,
)
from mim_plugins.engine.hooks import schedule_hook

SAMPLES, BATCH = 20, 4
LENGTH = SAMPLES // BATCH


class ToyData(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {'inputs': torch.randn(3, generator=generator)}


class ToyTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.momentum = 0.5
        self.register_buffer('temperature', torch.tensor(1.0))


class ToyModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.ModuleDict({'last_layer': nn.Linear(4, 2)})
        self.teacher = ToyTeacher()
        self.calls = 0

    def forward(self, inputs, mode='loss'):
        out = self.head['last_layer'](self.body(inputs))
        return {'loss': 100 * out.float().square().mean()}

    def after_optimizer_step(self, halted=None):
        self.calls += 1


class Recorder(Hook):
    """Writes down what each iteration sees."""

    priority = 'VERY_LOW'

    def __init__(self):
        self.rows = []

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ):
        model, wrapper = runner.model, runner.optim_wrapper
        decayed, undecayed = wrapper.optimizer.param_groups
        hub = runner.message_hub
        self.rows.append(
            {
                'iter': runner.iter,
                'lr': decayed['lr'],
                'lr_undecayed': undecayed['lr'],
                'lr_logged': hub.get_scalar('train/lr').current(),
                'wd': decayed['weight_decay'],
                'wd_undecayed': undecayed['weight_decay'],
                'wd_logged': hub.get_scalar('train/weight_decay').current(),
                'momentum': model.teacher.momentum,
                'temperature': float(model.teacher.temperature),
                'calls': model.calls,
                'last': model.head['last_layer'].weight.detach().clone(),
                'body': model.body.weight.detach().clone(),
            }
        )

    def column(self, name):
        return [row[name] for row in self.rows]


def schedules(**kwargs):
    result = {
        'lr': {
            'type': 'CosineSchedule',
            'base': 0.004,
            'final': 1e-5,
            'scale_batch': 8,
            'warmup_epochs': 1,
        },
        'weight_decay': {
            'type': 'CosineSchedule',
            'base': 0.04,
            'final': 0.4,
        },
        'momentum': {
            'type': 'LinearSchedule',
            'target': 'teacher.momentum',
            'base': 0.9,
            'final': 1.0,
        },
        'temperature': {
            'type': 'TemperatureSchedule',
            'target': 'teacher.temperature',
            'warm': 0.04,
            'final': 0.07,
            'warmup_epochs': 2,
        },
    }
    result.update(kwargs)
    return result


def run(folder, epochs=3, accumulation=1, model=None, **kwargs):
    recorder = Recorder()
    torch.manual_seed(0)
    loop = kwargs.pop('train_cfg', {'by_epoch': True, 'max_epochs': epochs})
    hooks = {
        'schedules': {'type': 'ScheduleHook', 'schedules': schedules()},
        'freeze': {'type': 'FreezeLastLayerHook', 'epochs': 1},
        'step': {'type': 'OptimizerStepHook'},
        'checkpoint': {'type': 'CheckpointHook', 'interval': 1},
    }
    hooks.update(kwargs.pop('hooks', {}))
    wrapper = {
        'constructor': 'PretrainOptimConstructor',
        'type': 'PretrainOptimWrapper',
        'optimizer': {'type': 'AdamW'},
        'accumulative_counts': accumulation,
        'clip': {'max_norm': 0.5, 'mode': 'tensor'},
    }
    other = kwargs.pop('optim_wrapper', {})
    wrapper = other if other.pop('_delete_', False) else {**wrapper, **other}
    runner = Runner(
        model=model or ToyModel(),
        work_dir=str(folder),
        train_dataloader=kwargs.pop('loader', None)
        or DataLoader(ToyData(), BATCH, num_workers=0),
        train_cfg=loop,
        optim_wrapper=wrapper,
        default_hooks=hooks,
        custom_hooks=[] if kwargs.pop('bare', False) else [recorder],
        default_scope='mmpretrain',
        experiment_name=f'toy-{folder.name}-{len(list(folder.iterdir()))}',
        log_level='WARNING',
        **kwargs,
    )
    runner.train()
    return runner, recorder


def test_schedules_are_applied(tmp_path):
    runner, seen = run(tmp_path)
    total = 3 * LENGTH
    base = 0.004 * BATCH / 8
    lr = cosine_schedule(base, 1e-5, total, LENGTH)
    assert lr[0] == 0
    np.testing.assert_allclose(seen.column('lr'), lr)
    np.testing.assert_allclose(seen.column('lr_undecayed'), lr)
    np.testing.assert_allclose(seen.column('lr_logged'), lr)
    decay = cosine_schedule(0.04, 0.4, total)
    np.testing.assert_allclose(seen.column('wd'), decay)
    np.testing.assert_allclose(seen.column('wd_logged'), decay)
    assert set(seen.column('wd_undecayed')) == {0.0}
    momentum = 0.9 + 0.1 * np.arange(total) / total
    np.testing.assert_allclose(seen.column('momentum'), momentum)
    warm = temperature_schedule(0.04, 0.07, 2, 3).repeat(LENGTH)
    np.testing.assert_allclose(seen.column('temperature'), warm, rtol=1e-6)
    assert isinstance(runner.model.teacher.temperature, torch.Tensor)
    assert seen.column('calls') == list(range(1, total + 1))


def test_last_layer_is_frozen_in_the_first_epoch_only(tmp_path):
    _, seen = run(tmp_path)
    last, body = seen.column('last'), seen.column('body')
    for i in range(1, LENGTH):
        assert torch.equal(last[i], last[0])
        assert not torch.equal(body[i], body[i - 1])
    for i in range(LENGTH, 3 * LENGTH):
        assert not torch.equal(last[i], last[i - 1])


@pytest.mark.parametrize('accumulation', [2, 4])
def test_accumulation_moves_everything_once_per_step(tmp_path, accumulation):
    """15 iterations are not a multiple: the last window is shorter."""
    runner, seen = run(tmp_path, accumulation=accumulation)
    iters = np.arange(3 * LENGTH)
    steps = -(-len(iters) // accumulation)
    step = iters // accumulation
    base = 0.004 * BATCH * accumulation / 8
    lr = cosine_schedule(base, 1e-5, steps, round(LENGTH / accumulation))
    np.testing.assert_allclose(seen.column('lr'), lr[step])
    epoch = step * accumulation // LENGTH
    warm = temperature_schedule(0.04, 0.07, 2, 3)[epoch]
    np.testing.assert_allclose(seen.column('temperature'), warm, rtol=1e-6)
    ended = (iters + 1) % accumulation == 0
    ended[-1] = True
    assert seen.column('calls') == ended.cumsum().tolist()
    state = runner.optim_wrapper.optimizer.state[runner.model.body.weight]
    assert state['step'] == steps


@pytest.mark.usefixtures('safe_reading')
def test_a_resumed_run_continues_the_same_schedules(tmp_path):
    whole, part = tmp_path / 'whole', tmp_path / 'part'
    for folder in (whole, part):
        folder.mkdir()
    _, expected = run(whole, accumulation=2)
    with pytest.raises(KeyboardInterrupt):
        run(part, accumulation=2, hooks={'stop': StopAfter(2)})
    _, seen = run(part, accumulation=2, resume=True)
    assert seen.column('iter') == list(range(2 * LENGTH, 3 * LENGTH))
    for name in ('lr', 'wd', 'momentum', 'temperature'):
        assert seen.column(name) == expected.column(name)[2 * LENGTH :]
    assert torch.equal(seen.rows[-1]['body'], expected.rows[-1]['body'])


class StopAfter(Hook):
    """An interruption after the checkpoint of an epoch."""

    priority = 'LOWEST'

    def __init__(self, epochs):
        self.epochs = epochs

    def after_train_epoch(self, runner):
        if runner.epoch + 1 == self.epochs:
            raise KeyboardInterrupt


def test_iteration_loop_counts_epochs_by_the_dataloader(tmp_path):
    loop = {'by_epoch': False, 'max_iters': 2 * LENGTH + 2}
    sampler = torch.utils.data.RandomSampler(
        ToyData(), replacement=True, num_samples=SAMPLES
    )
    loader = DataLoader(ToyData(), BATCH, sampler=Endless(sampler))
    hooks = {'checkpoint': {'type': 'CheckpointHook', 'interval': 100}}
    runner, seen = run(tmp_path, train_cfg=loop, loader=loader, hooks=hooks)
    warm = temperature_schedule(0.04, 0.07, 2, 3).repeat(LENGTH)
    np.testing.assert_allclose(
        seen.column('temperature'), warm[: 2 * LENGTH + 2], rtol=1e-6
    )
    lengths = Progress.of(runner)
    assert (lengths.steps, lengths.epochs) == (2 * LENGTH + 2, 3)


class Endless(torch.utils.data.Sampler):
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler

    def __len__(self):
        return len(self.sampler)


def test_a_run_shorter_than_its_warmups(tmp_path):
    hooks = {
        'schedules': {
            'type': 'ScheduleHook',
            'schedules': schedules(
                lr={
                    'type': 'CosineSchedule',
                    'base': 0.01,
                    'final': 1e-5,
                    'warmup_epochs': 10,
                }
            ),
        }
    }
    _, seen = run(tmp_path, epochs=1, hooks=hooks)
    ramp = np.linspace(0, 0.01, 10 * LENGTH)[:LENGTH]
    np.testing.assert_allclose(seen.column('lr'), ramp)
    assert set(seen.column('temperature')) == {np.float32(0.04)}


def test_summary_is_logged_once(tmp_path):
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    class Listen(Hook):
        priority = 'HIGHEST'

        def before_run(self, runner):
            runner.logger.setLevel('INFO')
            runner.logger.addHandler(Keep())

    run(tmp_path, accumulation=2, hooks={'listen': Listen()})
    lines = [r for r in records if r.startswith('Training:')]
    assert lines == [
        'Training: base lr 0.004, effective lr 0.004 (base x 8/8); global '
        'batch 8 = 4 images x 1 processes x accumulation 2; 8 optimizer '
        'steps (15 iterations) in 3 epochs of 5 iterations.'
    ]


def test_a_missing_target_is_named(tmp_path):
    config = {
        'type': 'ScheduleHook',
        'schedules': schedules(
            momentum={
                'type': 'ConstantSchedule',
                'base': 1.0,
                'target': 'teacher.momentun',
            }
        ),
    }
    with pytest.raises(AttributeError, match=r"teacher.*no 'momentun'"):
        run(tmp_path, hooks={'schedules': config})


def test_two_rulers_of_the_learning_rate_are_refused(tmp_path):
    rival = [{'type': 'MultiStepLR', 'milestones': [1]}]
    with pytest.raises(ValueError, match='param_scheduler'):
        run(tmp_path, param_scheduler=rival)


def test_freezing_needs_a_matching_name(tmp_path):
    hook = {'type': 'FreezeLastLayerHook', 'patterns': ('prototypes',)}
    with pytest.raises(ValueError, match="'prototypes'"):
        run(tmp_path, hooks={'freeze': hook})


def test_freezing_needs_the_wrapper(tmp_path):
    with pytest.raises(TypeError, match='PretrainOptimWrapper'):
        run(
            tmp_path,
            optim_wrapper={
                '_delete_': True,
                'type': 'OptimWrapper',
                'constructor': 'PretrainOptimConstructor',
                'optimizer': {'type': 'AdamW'},
            },
        )


def test_steps_of_other_wrappers_are_seen(tmp_path):
    _, seen = run(
        tmp_path,
        hooks={'freeze': {'type': 'FreezeLastLayerHook', 'epochs': 0}},
        optim_wrapper={
            '_delete_': True,
            'type': 'OptimWrapper',
            'constructor': 'PretrainOptimConstructor',
            'optimizer': {'type': 'AdamW'},
            'accumulative_counts': 4,
        },
    )
    assert seen.column('calls')[-5:] == [2, 3, 3, 3, 4]


@pytest.fixture
def process_group():
    torch.distributed.init_process_group(
        'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_a_model_in_a_data_parallel_wrapper(tmp_path, process_group):
    inner = ToyModel()
    start = inner.head['last_layer'].weight.detach().clone()
    model = MMDistributedDataParallel(inner, broadcast_buffers=False)
    runner, _ = run(tmp_path, epochs=1, accumulation=2, model=model, bare=True)
    assert runner.model is model
    assert inner.calls == 3
    assert inner.teacher.momentum == pytest.approx(0.9 + 0.1 * 2 / 3)
    assert torch.equal(inner.head['last_layer'].weight, start)


def test_processes_count_in_the_batch(tmp_path, monkeypatch):
    for module in (schedule_hook, progress):
        monkeypatch.setattr(module, 'get_world_size', lambda: 4)
    runner, seen = run(tmp_path)
    lr = cosine_schedule(0.004 * BATCH * 4 / 8, 1e-5, 3 * LENGTH, LENGTH)
    np.testing.assert_allclose(seen.column('lr'), lr)
    (hook,) = (h for h in runner.hooks if isinstance(h, ScheduleHook))
    assert 'effective lr 0.008 (base x 16/8)' in hook.describe(runner)
    assert '4 images x 4 processes' in hook.describe(runner)


def test_mmengines_own_scaling_is_refused(tmp_path):
    scaling = {'enable': True, 'base_batch_size': 4}
    with pytest.raises(ValueError, match='auto_scale_lr'):
        run(tmp_path, auto_scale_lr=scaling)
