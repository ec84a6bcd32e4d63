import pytest
import torch
from mmpretrain.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

import mim_plugins  # noqa: F401
from mim_plugins.engine.optimizers import constructor as constructor_module
from mim_plugins.engine.optimizers import fused as fused_module
from mim_plugins.engine.optimizers import is_decayed, supports_fused


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.ones(1, 1, 4))
        self.body = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)
        self.alias = self.head
        self.fixed = nn.Parameter(torch.ones(2, 2), requires_grad=False)


def build(model=None, paramwise=None, kind='PretrainOptimConstructor', **opt):
    optimizer = {'type': 'AdamW', 'lr': 0.5, 'weight_decay': 0.25, **opt}
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(
        {
            'type': kind,
            'optim_wrapper_cfg': {
                'type': 'PretrainOptimWrapper',
                'optimizer': optimizer,
            },
            'paramwise_cfg': paramwise,
        }
    )
    return constructor(model or Toy())


def options(model, wrapper, *keys):
    names = {p: n for n, p in model.named_parameters()}
    return {
        names[p]: tuple(group[key] for key in keys)
        for group in wrapper.optimizer.param_groups
        for p in group['params']
    }


def test_two_groups_in_order_of_occurrence():
    model = Toy()
    wrapper = build(model)
    first, second = wrapper.optimizer.param_groups
    assert (first['decay_mult'], second['decay_mult']) == (1.0, 0.0)
    assert options(model, wrapper, 'weight_decay', 'lr') == {
        'cls_token': (0.25, 0.5),
        'body.weight': (0.25, 0.5),
        'head.weight': (0.25, 0.5),
        'body.bias': (0.0, 0.5),
        'norm.weight': (0.0, 0.5),
        'norm.bias': (0.0, 0.5),
        'head.bias': (0.0, 0.5),
    }


def test_custom_keys_override_what_they_mention():
    model = Toy()
    paramwise = {
        'custom_keys': {
            'head': {'lr_mult': 0.1},
            'head.weight': {'lr_mult': 0.2, 'decay_mult': 0.0},
            'cls_token': {'decay_mult': 0.5},
        }
    }
    found = options(
        model, build(model, paramwise), 'lr', 'lr_mult', 'weight_decay'
    )
    assert found['head.weight'] == pytest.approx((0.1, 0.2, 0.0))
    assert found['head.bias'] == pytest.approx((0.05, 0.1, 0.0))
    assert found['cls_token'] == (0.5, 1.0, 0.125)
    assert found['body.weight'] == (0.5, 1.0, 0.25)


def test_custom_keys_that_match_nothing_are_said(monkeypatch):
    said = []
    monkeypatch.setattr(
        constructor_module, 'print_log', lambda text, **_: said.append(text)
    )
    build(paramwise={'custom_keys': {'prototypes': {'lr_mult': 2.0}}})
    assert len(said) == 1 and 'prototypes' in said[0]


def test_unknown_options_are_refused():
    with pytest.raises(ValueError, match='norm_decay_mult.*custom_keys'):
        build(paramwise={'norm_decay_mult': 0.0})


def test_an_unknown_optimizer_is_named():
    with pytest.raises(KeyError, match="'AdamX'"):
        build(type='AdamX')


def test_a_model_without_trainable_parameters():
    model = Toy().requires_grad_(False)
    with pytest.raises(ValueError, match='nothing to train'):
        build(model)


def test_data_parallel_wrappers_are_opened():
    model = Toy()
    wrapper = build(nn.DataParallel(model))
    wrapper.frozen = ('head',)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = model.head.weight.clone()
    wrapper.step()
    assert torch.equal(model.head.weight, before)


@pytest.mark.parametrize('kind', ['AdamW', 'SGD', 'LARS'])
def test_optimizers_train(kind):
    model = Toy()
    wrapper = build(model, type=kind)
    before = {n: p.clone() for n, p in model.named_parameters()}
    model.head(model.norm(model.body(model.cls_token))).sum().backward()
    wrapper.step()
    for name, parameter in model.named_parameters():
        assert (name == 'fixed') == torch.equal(parameter, before[name]), name


def test_lars_leaves_out_what_is_not_decayed():
    """One step of mmpretrain's LARS, against You et al., Algorithm 1."""
    model = Toy()
    wrapper = build(model, type='LARS', momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    expected = {}
    for name, parameter in model.named_parameters():
        weight, grad = parameter.detach().double(), parameter.grad.double()
        if name.endswith('.bias') or parameter.ndim == 1:
            update = grad
        else:
            norm = weight.norm()
            rate = 0.001 * norm / (grad.norm() + 0.25 * norm)
            update = rate * (grad + 0.25 * weight)
        buffer = 0.5 * update
        expected[name] = weight - buffer - (0.9 * buffer + 0)
    wrapper.step()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for group in wrapper.optimizer.param_groups:
        group['weight_decay'] = 0.0  # second step: momentum alone
    wrapper.step()
    for name, parameter in model.named_parameters():
        if name != 'fixed':
            torch.testing.assert_close(
                parameter.detach().double(), expected[name], rtol=1e-5, atol=0
            )


def test_fused_is_used_unless_told_otherwise():
    if not supports_fused(torch.optim.AdamW, [{'params': [torch.ones(1)]}]):
        pytest.skip('no fused AdamW on this device')
    assert build().optimizer.defaults['fused'] is True
    assert build(fused=False).optimizer.defaults['fused'] is False
    assert not build(foreach=True).optimizer.defaults['fused']


def test_dampened_momentum_is_not_fused():
    """torch's kernel fails once a frozen layer is released."""
    wrapper = build(type='SGD', momentum=0.9, dampening=0.5)
    assert not wrapper.optimizer.defaults['fused']


def test_no_fused_kernel_no_fused_optimizer(monkeypatch):
    monkeypatch.setattr(fused_module, '_try', lambda *args: False)
    assert not build().optimizer.defaults['fused']


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_fused_adamw_is_adamw(dtype):
    """Steps with changing rates and a skipped gradient, as we use it."""
    parameters = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = Toy().to(dtype)
        wrapper = build(model, fused=fused)
        for step in range(4):
            for group in wrapper.optimizer.param_groups:
                group['lr'] = 0.1 / (1 + step)
                group['weight_decay'] = 0.1 * step * group['decay_mult']
            for i, parameter in enumerate(model.parameters()):
                torch.manual_seed(10 * step + i)
                parameter.grad = torch.randn_like(parameter)
            wrapper.frozen = ('head',) if step < 2 else ()
            wrapper.step()
        parameters.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*parameters)


def test_layer_decay_needs_depths():
    with pytest.raises(TypeError, match='Toy.*get_layer_depth'):
        build(kind='LayerDecayConstructor')


def test_a_bias_of_two_dimensions_is_not_decayed():
    assert not is_decayed('head.bias', torch.ones(2, 2))
    assert is_decayed('head.bias_table', torch.ones(2, 2))


def test_the_default_decay_of_an_optimizer_is_not_for_biases():
    model = Toy()
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(
        {
            'type': 'PretrainOptimConstructor',
            'optim_wrapper_cfg': {'optimizer': {'type': 'AdamW'}},
        }
    )
    found = options(model, constructor(model), 'weight_decay')
    default = torch.optim.AdamW([torch.ones(1)]).defaults['weight_decay']
    assert default > 0
    assert found['body.weight'] == (default,)
    assert found['body.bias'] == (0.0,)
