import copy

import pytest
import torch
from mmpretrain.registry import OPTIM_WRAPPERS
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from toy_runs import assert_equal

from mim_plugins.engine.optimizers import precision as precision_module
from mim_plugins.engine.optimizers import resolve_precision
from mim_plugins.engine.optimizers import wrapper as wrapper_module

DEVICES = ['cpu', 'cuda'] if torch.cuda.is_available() else ['cpu']
HAS_FP16 = precision_module.autocast_works('cpu', torch.float16)
needs_fp16 = pytest.mark.skipif(
    not HAS_FP16, reason='autocast to float16 does not work on this device'
)


@pytest.fixture(autouse=True, params=DEVICES)
def device(request):
    torch.set_default_device(request.param)
    yield request.param
    torch.set_default_device(None)


def model_and_wrapper(optimizer='SGD', lr=0.1, **kwargs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    cls = getattr(torch.optim, optimizer)
    wrapper = OPTIM_WRAPPERS.build(
        {
            'type': 'PretrainOptimWrapper',
            'optimizer': cls(model.parameters(), lr=lr),
            **kwargs,
        }
    )
    return model, wrapper


def batch(seed=1):
    generator = torch.Generator('cpu').manual_seed(seed)
    data = torch.randn(16, 6, generator=generator, device='cpu')
    return data.to(torch.get_default_device())


def train(model, wrapper, steps=1, factor=1.0):
    for i in range(steps):
        with wrapper.optim_context(model):
            out = model(batch(i))
        wrapper.update_params(factor * out.float().square().mean())
    return out


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def assert_same(left, right, **kwargs):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, **kwargs)


@pytest.mark.parametrize(
    'precision, dtype',
    [
        ('fp32', torch.float32),
        ('bf16', torch.bfloat16),
        pytest.param('fp16', torch.float16, marks=needs_fp16),
    ],
)
def test_forward_runs_in_the_precision(precision, dtype):
    model, wrapper = model_and_wrapper(precision=precision)
    assert wrapper.precision == precision
    before = weights(model)
    assert train(model, wrapper).dtype == dtype
    reference, plain = model_and_wrapper()
    train(reference, plain)
    moved = [a - b for a, b in zip(weights(model), before)]
    wanted = [a - b for a, b in zip(weights(reference), before)]
    assert_same(moved, wanted, rtol=0.05, atol=1e-3)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@needs_fp16
@pytest.mark.parametrize('mode', ['tensor', 'global'])
def test_clipping_sees_unscaled_gradients(mode):
    """The loss scale (65536) would otherwise clip everything."""
    clip = {'max_norm': 0.05, 'mode': mode}
    model, wrapper = model_and_wrapper(precision='fp16', clip=clip)
    reference, plain = model_and_wrapper(clip=clip)
    before = weights(model)
    train(model, wrapper)
    train(reference, plain)
    torch.testing.assert_close(
        wrapper.grad_norm, plain.grad_norm, rtol=0.01, atol=0
    )
    assert plain.grad_norm > 0.05
    moved = [a - b for a, b in zip(weights(model), before)]
    wanted = [a - b for a, b in zip(weights(reference), before)]
    assert_same(moved, wanted, rtol=0.05, atol=1e-4)


@needs_fp16
@pytest.mark.parametrize('optimizer', ['SGD', 'AdamW'])
def test_overflow_skips_the_update_and_lowers_the_scale(optimizer):
    model, wrapper = model_and_wrapper(
        optimizer, precision='fp16', clip={'max_norm': 1.0}
    )
    before, scale = weights(model), wrapper.scaler.get_scale()
    train(model, wrapper, factor=1e6)
    assert_same(weights(model), before, rtol=0, atol=0)
    assert wrapper.scaler.get_scale() == scale / 2
    assert wrapper.stepped  # still a step for the teacher and the schedules
    train(model, wrapper)
    assert not torch.equal(weights(model)[0], before[0])


@needs_fp16
def test_the_scaler_is_saved():
    model, wrapper = model_and_wrapper(
        precision='fp16', scaler={'init_scale': 64.0}
    )
    train(model, wrapper, factor=1e6)
    state = wrapper.state_dict()
    _, other = model_and_wrapper(precision='fp16')
    other.load_state_dict(state)
    assert other.scaler.get_scale() == 32.0
    assert 'loss_scaler' in state  # the caller's dict is left alone


@needs_fp16
def test_a_change_of_precision_on_resume_is_said(monkeypatch):
    said = []
    monkeypatch.setattr(
        wrapper_module, 'print_log', lambda text, **_: said.append(text)
    )
    half, full = (
        model_and_wrapper(precision=precision)[1].state_dict()
        for precision in ('fp16', 'bf16')
    )
    for precision, state in [('bf16', half), ('fp16', full)]:
        _, other = model_and_wrapper(precision=precision)
        other.load_state_dict(state)
        assert len(said) == 1 and f'uses precision {precision}' in said.pop()
        other.load_state_dict(other.state_dict())
        assert not said


def test_automatic_precision_is_logged(monkeypatch, device):
    said = []
    monkeypatch.setattr(
        wrapper_module, 'print_log', lambda text, **_: said.append(text)
    )
    _, wrapper = model_and_wrapper(precision='auto')
    assert said == [f"Precision 'auto' is {wrapper.precision} on '{device}'."]


def test_fp16_where_it_does_not_work(monkeypatch):
    monkeypatch.setattr(
        precision_module, 'autocast_works', lambda device, dtype: False
    )
    with pytest.raises(ValueError, match="'fp16' does not work.*use bf16"):
        model_and_wrapper(precision='fp16')


def test_unknown_precision():
    with pytest.raises(ValueError, match="'amp'.*auto"):
        model_and_wrapper(precision='amp')


@pytest.mark.parametrize(
    'kind, fast, expected',
    [
        ('cpu', True, 'bf16'),
        ('cpu', False, 'fp32'),
        ('cuda', True, 'bf16'),
        ('cuda', False, 'fp16'),
        ('mps', False, 'fp32'),
    ],
)
def test_automatic_precision(monkeypatch, kind, fast, expected):
    monkeypatch.setattr(
        precision_module, 'supports_fast_bf16', lambda device_type: fast
    )
    assert resolve_precision('auto', kind) == expected


def test_automatic_precision_is_that_of_the_first_process(monkeypatch):
    def broadcast(box):
        box[0] = 'bf16'

    monkeypatch.setattr(precision_module, 'get_world_size', lambda: 2)
    monkeypatch.setattr(precision_module, 'broadcast_object_list', broadcast)
    monkeypatch.setattr(
        precision_module, 'supports_fast_bf16', lambda device_type: False
    )
    assert resolve_precision('auto', 'cpu') == 'bf16'


def test_accumulation_equals_one_large_batch():
    model, wrapper = model_and_wrapper(accumulative_counts=2)
    reference, plain = model_and_wrapper()
    stepped = []
    for i in range(2):
        with wrapper.optim_context(model):
            loss = model(batch(i)).square().mean()
        wrapper.update_params(loss)
        stepped.append(wrapper.stepped)
    assert stepped == [False, True]
    both = torch.cat([batch(0), batch(1)])
    plain.update_params(reference(both).square().mean())
    assert_same(weights(model), weights(reference))
    torch.testing.assert_close(wrapper.grad_norm, plain.grad_norm)


def test_the_shorter_last_window_is_averaged_over_its_own_length():
    model, wrapper = model_and_wrapper(accumulative_counts=4)
    wrapper.initialize_count_status(model, 0, 6)
    reference, plain = model_and_wrapper()
    for i in range(6):
        loss = model(batch(i)).square().mean()
        wrapper.update_params(loss)
    for window in (range(4), range(4, 6)):
        data = torch.cat([batch(i) for i in window])
        plain.update_params(reference(data).square().mean())
    assert_same(weights(model), weights(reference))


def test_frozen_parameters_count_in_the_global_norm():
    """Clipping comes before freezing, as in the official code."""
    clip = {'max_norm': 1e-3, 'mode': 'global'}
    model, wrapper = model_and_wrapper(clip=clip, frozen=('1.',))
    wrapper.name_parameters(model)
    reference, plain = model_and_wrapper(clip=clip)
    before = weights(model)
    train(model, wrapper)
    train(reference, plain)
    assert_same(weights(model)[:2], weights(reference)[:2])
    assert_same(weights(model)[2:], before[2:], rtol=0, atol=0)
    assert not torch.equal(weights(reference)[2], before[2])


def test_frozen_without_names():
    model, wrapper = model_and_wrapper(frozen=('1.',))
    with pytest.raises(RuntimeError, match='PretrainOptimConstructor'):
        train(model, wrapper)


@pytest.mark.parametrize(
    'clip',
    [{'max_norm': 1.0, 'mode': 'value'}, {'max_norm': 1.0, 'norm_type': 1}],
)
def test_clip_is_checked(clip):
    with pytest.raises(ValueError, match='max_norm and mode, one of tensor'):
        model_and_wrapper(clip=clip)


@pytest.mark.parametrize('clip', [None, {'max_norm': 0}, {'max_norm': None}])
def test_no_clipping(clip):
    model, wrapper = model_and_wrapper(clip=clip)
    reference, plain = model_and_wrapper(clip={'max_norm': 1e-3})
    train(model, wrapper, factor=100)
    train(reference, plain, factor=100)
    assert wrapper.grad_norm == plain.grad_norm
    assert not torch.allclose(weights(model)[0], weights(reference)[0])


def test_names_are_those_inside_a_data_parallel_wrapper():
    model, wrapper = model_and_wrapper(frozen=('module',))
    wrapper.name_parameters(nn.DataParallel(model))
    before = weights(model)
    train(model, wrapper)
    assert not torch.equal(weights(model)[0], before[0])


BAD = [float('nan'), float('inf')]
PRECISIONS = [
    'fp32',
    'bf16',
    pytest.param('fp16', marks=needs_fp16),
]


def full_state(model, wrapper):
    return copy.deepcopy([weights(model), wrapper.state_dict()])


@pytest.mark.parametrize('optimizer', ['SGD', 'AdamW'])
@pytest.mark.parametrize('precision', PRECISIONS)
@pytest.mark.parametrize('value', BAD)
def test_a_loss_that_is_not_finite_halts(value, precision, optimizer):
    """All updates from then on, those of good batches too."""
    clip = {'max_norm': 1.0, 'mode': 'global'}
    model, wrapper = model_and_wrapper(
        optimizer, precision=precision, clip=clip, frozen=('1.bias',)
    )
    wrapper.name_parameters(model)
    train(model, wrapper, steps=2)
    before = full_state(model, wrapper)
    assert not bool(wrapper.watch.halted)
    train(model, wrapper, factor=value)
    assert bool(wrapper.watch.halted)
    train(model, wrapper, steps=2)
    assert_equal(full_state(model, wrapper), before)
    assert wrapper.watch.first() == 3


@pytest.mark.parametrize('precision', PRECISIONS)
def test_the_first_step_can_be_the_bad_one(precision):
    model, wrapper = model_and_wrapper('AdamW', precision=precision)
    before = weights(model)
    train(model, wrapper, factor=float('nan'))
    assert_same(weights(model), before, rtol=0, atol=0)
    assert wrapper.watch.first() == 1
    for state in wrapper.optimizer.state.values():
        assert not any(value.any() for value in state.values())


def test_an_infinite_loss_with_a_finite_gradient_halts():
    model, wrapper = model_and_wrapper()
    before = weights(model)
    wrapper.update_params(model(batch()).square().mean() + float('inf'))
    assert wrapper.grad_norm.isfinite()
    assert_same(weights(model), before, rtol=0, atol=0)
    assert wrapper.watch.first() == 1


class NoGradient(torch.autograd.Function):
    """The identity, whose gradient is NaN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float('nan')


@pytest.mark.parametrize('precision', PRECISIONS)
def test_a_gradient_that_is_not_finite_halts_but_with_fp16(precision):
    """There it is an overflow, with which the loss scaler deals."""
    model, wrapper = model_and_wrapper(precision=precision)
    before = weights(model)
    loss = model(batch()).float().square().mean()
    wrapper.update_params(NoGradient.apply(loss))
    assert_same(weights(model), before, rtol=0, atol=0)
    assert wrapper.watch.first() == (None if precision == 'fp16' else 1)


@pytest.mark.parametrize('bad', [0, 1])
def test_one_micro_batch_halts_the_whole_window(bad):
    model, wrapper = model_and_wrapper('AdamW', accumulative_counts=2)
    train(model, wrapper, steps=2)
    before = full_state(model, wrapper)
    for i in range(2):
        train(model, wrapper, factor=float('nan') if i == bad else 1.0)
    train(model, wrapper, steps=2)
    assert_equal(full_state(model, wrapper), before)
    assert wrapper.watch.first() == 3 + bad


def test_iterations_are_counted_from_where_the_run_goes_on():
    model, wrapper = model_and_wrapper()
    wrapper.initialize_count_status(model, 10, 20)
    train(model, wrapper)
    train(model, wrapper, factor=float('nan'))
    assert wrapper.watch.first() == 12


def test_watching_costs_few_operators():
    """As many for two parameters as for twenty."""
    # three of them are the norm of the gradients, which is logged anyway
    assert extra_operators(2) == extra_operators(20) <= 24


def extra_operators(width):
    """Those of a step of the wrapper beyond a plain loop's."""
    params = [nn.Parameter(torch.ones(3)) for _ in range(width)]
    optimizer = torch.optim.AdamW(params, fused=True)
    wrapper = OPTIM_WRAPPERS.build(
        {'type': 'PretrainOptimWrapper', 'optimizer': optimizer}
    )

    def plain():
        sum(p.sum() for p in params).backward()
        optimizer.step()
        optimizer.zero_grad()

    def watched():
        wrapper.update_params(sum(p.sum() for p in params))

    return operators(watched) - operators(plain)


class Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(function):
    function()
    with Counter() as counter:
        function()
    return counter.count
