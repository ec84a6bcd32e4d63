"""The literal step is the step that is trained with."""

import copy

import torch
from mmengine.config import ConfigDict
from mmpretrain.registry import OPTIM_WRAPPER_CONSTRUCTORS
from toy_ibot import build_ibot, make_batch

from mim_plugins.testing.literal_step import LiteralStep


def test_parameters_after_three_steps():
    ours = build_ibot(student={'attention': 'explicit'})
    literal = copy.deepcopy(ours)
    step = LiteralStep(literal, lr=0.01, weight_decay=0.3, max_norm=0.05)
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(
        {
            'type': 'PretrainOptimConstructor',
            'optim_wrapper_cfg': ConfigDict(
                type='PretrainOptimWrapper',
                optimizer={'type': 'AdamW', 'lr': 0.01, 'weight_decay': 0.3},
                clip={'max_norm': 0.05, 'mode': 'tensor'},
            ),
        }
    )
    wrapper = constructor(ours)
    for _ in range(3):
        inputs = make_batch()
        parts = ours.loss(inputs)
        loss = parts['loss_cls'] + parts['loss_patch']
        wrapper.update_params(loss)
        ours.after_optimizer_step()
        torch.testing.assert_close(step(inputs), loss.detach())
    expected = dict(
        literal.named_parameters(), **dict(literal.named_buffers())
    )
    found = dict(ours.named_parameters(), **dict(ours.named_buffers()))
    for name, value in expected.items():
        if name.endswith('qkv.bias'):
            # the true gradient of a key's bias is zero; Adam amplifies noise
            width = len(value) // 3
            value, found[name] = value.clone(), found[name].clone()
            value[width : 2 * width] = found[name][width : 2 * width] = 0
        torch.testing.assert_close(
            found[name], value, msg=lambda m, n=name: f'{n}: {m}'
        )
