import copy

import pytest
import torch
from toy_runs import assert_equal

from mim_plugins.engine.optimizers.masked_step import MaskedStep

YES, NO = torch.tensor(True), torch.tensor(False)
FUSED = [
    ('AdamW', {}),
    ('Adam', {'amsgrad': True}),
    ('Adagrad', {}),
    ('SGD', {}),
    ('SGD', {'momentum': 0.9, 'nesterov': True}),
    ('SGD', {'momentum': 0.9, 'dampening': 0.5}),
]
CASES = [(name, {**options, 'fused': True}) for name, options in FUSED] + [
    ('AdamW', {'foreach': True}),
    ('NAdam', {}),  # whose state does not start at zero
    ('RMSprop', {'momentum': 0.9}),
    ('SGD', {'momentum': 0.9, 'dampening': 0.5}),
    ('SGD', {}),
]


def build(name, options, count=2):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(5)) for _ in range(count)]
    kind = getattr(torch.optim, name)
    optimizer = kind(params, lr=0.1, weight_decay=0.1, **options)
    return params, optimizer


def give_gradients(params, value=None):
    for i, p in enumerate(params):
        p.grad = torch.linspace(-1, 2, 5) * (i + 1)
        if value is not None:
            p.grad[1] = value


def state(params, optimizer):
    found = copy.deepcopy(optimizer.state_dict()['state'])
    return {'params': [p.detach().clone() for p in params], 'state': found}


@pytest.mark.parametrize('name, options', CASES)
@pytest.mark.parametrize('first', [0, 1, 3])
def test_a_step_that_is_called_off_leaves_no_trace(name, options, first):
    """After none, one or three steps; then all is as without it."""
    params, optimizer = build(name, options)
    plain_params, plain = build(name, options)
    step = MaskedStep(optimizer)
    for _ in range(first):
        give_gradients(params)
        give_gradients(plain_params)
        step(NO)
        plain.step()
    before = state(params, optimizer)
    give_gradients(params, torch.nan)
    step(YES)
    if first:
        assert_equal(state(params, optimizer), before)
    assert_equal([p.detach() for p in params], before['params'])
    for _ in range(2):
        give_gradients(params)
        give_gradients(plain_params)
        step(NO)
        plain.step()
    assert_equal(state(params, optimizer), state(plain_params, plain))
    assert not hasattr(optimizer, 'found_inf')


@pytest.mark.parametrize(
    'name, options',
    # torch's own kernel fails, so the constructor does not choose it
    [case for case in CASES if not {'fused', 'dampening'} <= case[1].keys()],
)
def test_parameters_may_join_later(name, options):
    """As the last layer does, which is frozen at first."""
    params, optimizer = build(name, options)
    alone, reference = build(name, options)
    step, late = MaskedStep(optimizer), alone[1]
    give_gradients(params)
    params[1].grad = None
    step(NO)
    start = params[1].detach().clone()
    give_gradients(params, torch.nan)
    step(YES)
    assert torch.equal(params[1], start)
    give_gradients(params)
    step(NO)
    give_gradients(alone)
    alone[0].grad = None
    reference.step()
    torch.testing.assert_close(params[1], late, rtol=0, atol=0)


def test_a_fused_step_does_not_ask_the_host():
    params, optimizer = build('SGD', {'momentum': 0.9, 'fused': True})
    step = MaskedStep(optimizer)

    class Flag(torch.Tensor):
        def __bool__(self):
            raise AssertionError('the host looked at the flag')

    give_gradients(params)
    step(YES.as_subclass(Flag))
    assert not optimizer.state[params[0]]['momentum_buffer'].any()
