"""Blocks with less work give what mmpretrain's blocks give."""

import weakref

import pytest
import torch
from mmpretrain.registry import MODELS
from toy_ibot import student_config

from mim_plugins.models.backbones.block import run_block


def backbone(**changes):
    model = MODELS.build(student_config(**changes)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def assert_equal_with_gradients(module, tokens, out, expected):
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(out)
    wanted = [tokens, *module.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad((out * weights).sum(), wanted),
        torch.autograd.grad((expected * weights).sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


SHAPES = [
    {},
    {'layer_scale_init_value': 0.3},
    {'layer_cfgs': {'ffn_type': 'swiglu_fused'}},
]


@pytest.mark.parametrize('changes', SHAPES)
@pytest.mark.parametrize('recompute', [True, False])
def test_a_block_is_mmpretrains(changes, recompute):
    layer = backbone(**changes).layers[0]
    tokens = torch.randn(3, 5, 12, dtype=torch.double, requires_grad=True)
    out, expected = (
        run_block(layer, tokens, recompute=recompute),
        layer(tokens),
    )
    assert_equal_with_gradients(layer, tokens, out, expected)


@pytest.mark.parametrize('changes', SHAPES)
def test_some_rows_are_those_of_the_whole(changes):
    layer = backbone(**changes).layers[0]
    tokens = torch.randn(3, 5, 12, dtype=torch.double, requires_grad=True)
    rows = torch.tensor([0, 5, 10, 7, 7, 14])
    out = run_block(layer, tokens, rows)
    expected = layer(tokens).flatten(0, 1)[rows]
    assert_equal_with_gradients(layer, tokens, out, expected)


@pytest.mark.parametrize('recompute', [True, False])
def test_what_is_made_again_is_not_kept(recompute):
    layer = backbone().layers[0]
    outputs = []

    def note(module, inputs, output):
        outputs.append(weakref.ref(output))

    for module in (layer.ln1, layer.ln2, layer.ffn.layers[0][1]):
        module.register_forward_hook(note)
    tokens = torch.randn(3, 5, 12, dtype=torch.double, requires_grad=True)
    out = run_block(layer, tokens, recompute=recompute)
    assert len(outputs) == 3
    assert all((ref() is None) == recompute for ref in outputs)
    out.sum().backward()


def test_drop_path_takes_whole_images_of_some_rows():
    layer = backbone(drop_path_rate=0.9).layers[1]
    tokens = torch.randn(64, 5, 12, dtype=torch.double)
    rows = torch.arange(64 * 5)
    out = run_block(layer, tokens, rows).unflatten(0, (64, 5))
    same = (out == tokens).all(-1)
    assert (same.all(1) | ~same.any(1)).all()
    assert 30 < same.all(1).sum() < 64
    layer.eval()
    torch.testing.assert_close(
        run_block(layer, tokens, rows), layer(tokens).flatten(0, 1)
    )
