import pytest
import torch
from mmpretrain.registry import MODELS
from torch import nn
from toy_ibot import PATCH, perturb, student_config

from mim_plugins.models.backbones.drop_path import draw_drop_path
from mim_plugins.models.randomness import IterationRandomness

VIEWS, IMAGES = 2, 6


def backbone(**changes):
    torch.manual_seed(1)
    changes = {'drop_path_rate': 0.6, **changes}
    return perturb(MODELS.build(student_config(**changes)).double()).train()


def pictures(images=IMAGES):
    size = 3 * PATCH
    return torch.randn(VIEWS * images, 3, size, size, dtype=torch.double)


def draw(model, images=IMAGES, **part):
    randomness = IterationRandomness()
    randomness.start(3, 5, **part)
    views = torch.empty(VIEWS * images, 1)
    return draw_drop_path(model, views, VIEWS, randomness)


def test_branches_are_kept_as_often_as_is_said_and_scaled():
    scales = draw(backbone(), images=1000)
    assert scales.shape == (2, 2, VIEWS * 1000)
    assert scales.dtype == torch.double
    assert (scales[0] == 1).all()
    assert scales[1].unique().tolist() == pytest.approx([0, 1 / 0.4])
    kept = (scales[1] > 0).double()
    assert kept.mean(1).tolist() == pytest.approx([0.4, 0.4], abs=0.03)
    assert abs(torch.corrcoef(kept)[0, 1]) < 0.05


def test_processes_drop_what_one_drops():
    model = backbone()
    parts = [
        draw(model, IMAGES // 2, rank=rank, processes=2) for rank in (0, 1)
    ]
    views = [part.unflatten(2, (VIEWS, -1)) for part in parts]
    together = torch.stack(views, dim=-1).flatten(2)
    assert torch.equal(together, draw(model))


def test_nothing_is_drawn_where_nothing_is_dropped():
    assert draw(backbone().eval()) is None
    assert draw(backbone(drop_path_rate=0.0)) is None
    randomness = IterationRandomness()
    assert draw_drop_path(backbone(), pictures(), VIEWS, randomness) is None


def test_frozen_layers_drop_nothing():
    scales = draw(backbone(frozen_stages=1, drop_path_rate=0.6), 50)
    assert (scales[0] == 1).all() and (scales[1] == 0).any()
    assert draw(backbone(frozen_stages=2)) is None


class Given(nn.Module):
    """In the place of a DropPath: what was drawn for it."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale[:, None, None]


def literal_tokens(model, x, scales):
    """All blocks as mmpretrain runs them."""
    for layer, (attention, mlp) in zip(model.layers, scales):
        layer.attn.out_drop = Given(attention)
        layer.ffn.dropout_layer = Given(mlp)
    tokens = model.embed(x)
    for layer in model.layers:
        tokens = layer(tokens)
    return model.ln1(tokens)


LAYERS = [
    {},
    {'layer_scale_init_value': 0.3},
    {'layer_cfgs': {'ffn_type': 'swiglu_fused'}},
    {'layer_cfgs': {'num_fcs': 3}},
    {'with_cp': True},
]


def gradients(model, out, x):
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype)
    (out.flatten() * weights).sum().backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [x.grad, *found]


@pytest.mark.parametrize('changes', LAYERS, ids=str)
@pytest.mark.parametrize('some', [False, True])
def test_tokens_and_gradients_are_mmpretrains(changes, some):
    model, x = backbone(**changes), pictures()
    scales = draw(model)
    assert (scales[1, 0] == 0).any() and (scales[1, 0] > 0).any()
    index = torch.tensor([0, 8, 9, 40, 107]) if some else None
    results = []
    for literal in (False, True):
        model.zero_grad()
        mine = x.clone().requires_grad_()
        if literal:
            out = literal_tokens(model, mine, scales)
            if some:
                patches = out[:, 1:].flatten(0, 1)[index]
                out = torch.cat([out[:, 0], patches])
        else:
            out = model.forward_tokens(mine, None, index, scales)
        results.append([out, *gradients(model, out, mine)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_sixteen_bits_do_not_bias_the_scale():
    model = backbone(drop_path_rate=0.1).float()
    x = pictures().float()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        tokens = model.embed(x)
        plain, out = (
            model._run_layer(
                model.layers[1],
                tokens,
                scales=torch.stack(
                    [torch.zeros(len(x)), scale.expand(len(x))]
                ),
            )
            for scale in (torch.tensor(1.0), torch.tensor(1 / 0.9))
        )
    ratio = (out - tokens).norm() / (plain - tokens).norm()
    assert ratio.item() == pytest.approx(1 / 0.9, rel=2e-4)


def test_other_draws_do_not_compile_again():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model, x = backbone(), pictures()
    randomness = IterationRandomness()
    compiled = torch.compile(
        model.forward_tokens, backend=backend, fullgraph=True
    )
    for iteration in range(3):
        randomness.start(0, iteration)
        scales = draw_drop_path(model, x, VIEWS, randomness)
        torch.testing.assert_close(
            compiled(x, None, None, scales),
            model.forward_tokens(x, None, None, scales),
        )
    assert len(graphs) == 1
