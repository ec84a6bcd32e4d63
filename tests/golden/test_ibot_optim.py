"""Optimizer parts against the official code (``ibot_optim.npz``).

Groups are built here from the names and shapes in the file; the names of the
real model are tested with the model.
"""

import numpy as np
import pytest
import torch
from golden_files import golden
from mmpretrain.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS
from torch import nn

import mim_plugins  # noqa: F401
from mim_plugins.models.teachers.ema_update import common_names, ema_update

Z = golden('ibot_optim')
DTYPES = {'float64': torch.float64, 'float32': torch.float32}
TOLERANCE = {
    torch.float64: {'rtol': 0, 'atol': 1e-12},
    torch.float32: {'rtol': 0, 'atol': 1e-6},
}


@pytest.fixture(params=DTYPES)
def dtype(request):
    return DTYPES[request.param]


def assert_equal_to(tensor, key):
    np.testing.assert_allclose(
        tensor.detach().numpy(), Z[key], **TOLERANCE[tensor.dtype]
    )


def module_of(parameters):
    """A tree of modules whose parameters have the given dotted names."""
    root = nn.Module()
    for name, parameter in parameters.items():
        *path, leaf = name.split('.')
        module = root
        for part in path:
            if not hasattr(module, part):
                module.add_module(part, nn.Module())
            module = getattr(module, part)
        module.register_parameter(leaf, parameter)
    return root


def wrapper_of(model, optimizer, **kwargs):
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(
        {
            'type': 'PretrainOptimConstructor',
            'optim_wrapper_cfg': {
                'type': 'PretrainOptimWrapper',
                'optimizer': optimizer,
                **kwargs,
            },
        }
    )
    return constructor(model)


@pytest.mark.parametrize('case', Z.cases('code'))
def test_weight_decay_groups(case):
    names = [str(n) for n in Z[f'{case}/names']]
    shapes = [
        [int(n) for n in str(shape).split('x')]
        for shape in Z[f'{case}/shapes']
    ]
    codes = dict(zip(names, Z[f'{case}/code'].tolist()))
    model = module_of(
        {
            name: nn.Parameter(torch.zeros(shape), codes[name] >= 0)
            for name, shape in zip(names, shapes)
        }
    )
    wrapper = wrapper_of(
        model, {'type': 'AdamW', 'lr': 0.1, 'weight_decay': 0.5}
    )
    expected = {1: 0.5, 0: 0.0}
    found = {
        parameter: group['weight_decay']
        for group in wrapper.optimizer.param_groups
        for parameter in group['params']
    }
    assert len(wrapper.optimizer.param_groups) == 2
    for name, parameter in model.named_parameters():
        assert found.get(parameter) == expected.get(codes[name]), name


@pytest.mark.parametrize('case', Z.cases('norms'))
def test_clipping_per_tensor(case, dtype):
    clip = float(case.split('/')[-1])
    names = [str(n) for n in Z['clip/names']]
    with_grad = [n for n in names if f'clip/grad/{n}' in Z]
    assert len(with_grad) < len(names)
    shapes = Z.sub('clip/grad')
    model = module_of(
        {
            name: nn.Parameter(
                torch.zeros(shapes[name].shape if name in shapes else (2,)).to(
                    dtype
                )
            )
            for name in names
        }
    )
    wrapper = OPTIM_WRAPPERS.build(
        {
            'type': 'PretrainOptimWrapper',
            'optimizer': torch.optim.SGD(model.parameters(), lr=0.0),
            'clip': {'max_norm': clip, 'mode': 'tensor'},
        }
    )
    parameters = dict(model.named_parameters())
    for name in with_grad:
        parameters[name].grad = Z.tensor(f'clip/grad/{name}', dtype)
    wrapper.step()
    for name in names:
        grad = parameters[name].grad
        if name in with_grad:
            assert_equal_to(grad, f'{case}/grad/{name}')
        else:
            assert grad is None
    norms = Z[f'{case}/norms']
    np.testing.assert_allclose(
        wrapper.grad_norm.item(), np.linalg.norm(norms), rtol=1e-6
    )


@pytest.mark.parametrize('fused', [None, False])
def test_freezing_the_last_layer(dtype, fused):
    hp = Z.hp('freeze')
    start = Z.sub('freeze/param0')
    model = module_of(
        {
            name: nn.Parameter(torch.tensor(value, dtype=dtype))
            for name, value in start.items()
        }
    )
    parameters = dict(model.named_parameters())
    optimizer = {'type': 'AdamW'}
    if fused is not None:
        optimizer['fused'] = fused
    wrapper = wrapper_of(model, optimizer)
    for i, epoch in enumerate(hp['epochs']):
        for group in wrapper.optimizer.param_groups:
            group['lr'] = hp['lr'][i]
            group['weight_decay'] = hp['wd'][i] * group['decay_mult']
        frozen = epoch < hp['freeze_last_layer']
        wrapper.frozen = ('last_layer',) if frozen else ()
        for name, parameter in parameters.items():
            parameter.grad = Z.tensor(f'freeze/grad{i}/{name}', dtype)
        wrapper.step()
        wrapper.zero_grad()
        for name, parameter in parameters.items():
            assert_equal_to(parameter, f'freeze/param{i + 1}/{name}')
    for name, parameter in parameters.items():
        steps = wrapper.optimizer.state[parameter]['step']
        assert float(steps) == Z[f'freeze/adam_steps/{name}']


def test_moving_average(dtype):
    momenta = Z['ema/m'].tolist()
    teacher = {
        name: torch.tensor(value, dtype=dtype)
        for name, value in Z.sub('ema/teacher0').items()
    }
    for step, momentum in enumerate(momenta):
        student = {
            name: torch.tensor(value, dtype=dtype)
            for name, value in Z.sub(f'ema/student{step}').items()
        }
        names = common_names(teacher, student)
        assert names == list(teacher)
        ema_update(
            [teacher[n] for n in names],
            [student[n] for n in names],
            momentum,
        )
    for name, value in teacher.items():
        assert_equal_to(value, f'ema/teacher{len(momenta)}/{name}')


def test_names_of_the_moving_average():
    common = [str(n) for n in Z['ema/names_common']]
    rest = [str(n) for n in Z['ema/names_student_only']]
    assert common and rest
    one = torch.zeros(1)
    student = dict.fromkeys(rest + common[::-1], one)
    assert common_names(dict.fromkeys(common, one), student) == common
