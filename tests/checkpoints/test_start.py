"""What the loss does when a pre-training starts from a file."""

import argparse
import math

import numpy as np
import pytest
import torch
from mmpretrain.registry import MODELS
from toy_ibot import (
    head_config,
    make_batch,
    objective_configs,
    student_config,
    total_loss,
)

from mim_plugins.checkpoints import find_backbone, load_file, ours_to_ibot
from mim_plugins.checkpoints.start import start_from

UNIFORM = 2 * math.log(head_config()['out_dim'])


def fresh(**head):
    torch.manual_seed(7)
    config = {
        'type': 'IBOT',
        'student': student_config(),
        'head': head_config(**head),
        'objectives': objective_configs(),
    }
    model = MODELS.build(config)
    model.init_weights()
    model.teacher.momentum = 0.9
    return model


def step(model, optimizer, inputs):
    loss = total_loss(model.loss(inputs))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.after_optimizer_step()
    return loss.item()


def train(model, inputs, steps, lr=2e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return [step(model, optimizer, inputs) for _ in range(steps)]


def start(model, content):
    found = start_from(content, model.state_dict(), 'file')
    model.load_state_dict(found.state, strict=False)
    return found


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A trained model, its batch, and its file as official code writes it."""
    torch.manual_seed(0)
    inputs = make_batch(dtype=torch.float32)
    model = fresh()
    train(model, inputs, 60)
    path = tmp_path_factory.mktemp('official') / 'checkpoint.pth'
    torch.save(
        {
            **ours_to_ibot(model.state_dict()),
            'optimizer': {'state': {}, 'param_groups': [{'lr': 5e-4}]},
            'epoch': 60,
            'args': argparse.Namespace(arch='vit_tiny', lr=np.float64(5e-4)),
            'fp16_scaler': {'scale': 65536.0},
        },
        path,
    )
    return model, inputs, load_file(path)


def test_a_whole_file_goes_on_far_from_a_uniform_prediction(run):
    model, inputs, content = run
    before = total_loss(model.loss(inputs)).item()
    assert before < 0.5 * UNIFORM
    other = fresh()
    found = start(other, content)
    assert found.kept == []
    assert found.unused == ['optimizer', 'epoch', 'args', 'fp16_scaler']
    after = train(other, inputs, 3, lr=2e-4)
    assert after[0] == pytest.approx(before, rel=1e-6)
    assert max(after) < 0.5 * UNIFORM


def test_new_heads_begin_near_a_uniform_prediction(run):
    _, inputs, content = run
    backbone = find_backbone(content).state
    other = fresh()
    found = start(other, backbone)
    assert {name.split('.')[0] for name in found.kept} == {
        *('student', 'head', 'teacher', 'objectives')
    }
    other.teacher.momentum = 0.996
    losses = train(other, inputs, 20, lr=2e-4)
    # between them the centres, which are zero at first, find their place
    for loss in (losses[0], losses[-1]):
        assert 0.5 * UNIFORM < loss < 1.5 * UNIFORM
    assert all(map(math.isfinite, losses))


def test_heads_of_another_kind_are_named(run):
    _, _, content = run
    found = start(fresh(share='mlp'), content)
    layers = [name for name in found.kept if 'patch_last_layer' in name]
    assert layers == [
        f'{owner}.patch_last_layer.{leaf}'
        for owner in ('head', 'teacher.head')
        for leaf in ('weight', 'scale')
    ]
