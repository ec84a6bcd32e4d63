"""The projection head against the official one."""

import pytest
import torch
from golden_files import golden
from mmpretrain.registry import MODELS

from mim_plugins.checkpoints import ibot_head_to_ours

DATA = golden('ibot_head')
CASES = DATA.cases('r_cls')
TOLERANCE = {
    torch.float64: (dict(rtol=0, atol=1e-10), dict(rtol=0, atol=1e-10)),
    torch.float32: (dict(rtol=0, atol=1e-5), dict(rtol=1e-4, atol=1e-5)),
}


def build(case: str, dtype: torch.dtype):
    hp = DATA.hp()
    state = ibot_head_to_ours(
        {
            k: torch.from_numpy(v).to(dtype)
            for k, v in DATA.sub(f'{case}/sd').items()
        }
    )
    trainable = set(DATA[f'{case}/trainable'].tolist())
    head = MODELS.build(
        dict(
            type='IBOTHead',
            in_dim=hp['in_dim'],
            hidden_dim=hp['hidden'],
            bottleneck_dim=hp['bottleneck'],
            num_layers=hp['nlayers'],
            out_dim=DATA[f'{case}/cls'].shape[-1],
            patch_out_dim=DATA[f'{case}/patch'].shape[-1],
            share='mlp' if f'{case}/grad_last2_v' in DATA else 'all',
            norm_last_layer='last_layer.weight_g' not in trainable,
        )
    ).to(dtype)
    head.load_state_dict(state)
    return head


@pytest.mark.parametrize('dtype', TOLERANCE, ids=str)
@pytest.mark.parametrize('case', CASES)
def test_logits_match_official(case, dtype):
    head = build(case, dtype)
    x = DATA.tensor('x', dtype)
    values, _ = TOLERANCE[dtype]
    cls, patch = head(x)
    for got, name in ((cls, 'cls'), (patch, 'patch'), (head(x[:, 0]), 'cls')):
        want = DATA.tensor(f'{case}/{name}', dtype)
        torch.testing.assert_close(got, want, **values)
    torch.testing.assert_close(
        head(x[:, 0]), DATA.tensor(f'{case}/cls_from_2d', dtype), **values
    )


@pytest.mark.parametrize('dtype', TOLERANCE, ids=str)
@pytest.mark.parametrize('case', CASES)
def test_gradients_match_official(case, dtype):
    head = build(case, dtype)
    x = DATA.tensor('x', dtype).requires_grad_()
    _, close = TOLERANCE[dtype]
    cls, patch = head(x)
    loss = (cls * DATA.tensor(f'{case}/r_cls', dtype)).sum()
    loss = loss + (patch * DATA.tensor(f'{case}/r_patch', dtype)).sum()
    loss.backward()
    grads = {
        'grad_x': x.grad,
        'grad_mlp0_weight': head.mlp[0].weight.grad,
        'grad_last_v': head.last_layer.weight.grad,
        'grad_last2_v': head.patch_prototypes.weight.grad,
        'grad_last_g': head.last_layer.scale.grad,
    }
    compared = 0
    for name, got in grads.items():
        if f'{case}/{name}' in DATA:
            want = DATA.tensor(f'{case}/{name}', dtype)
            torch.testing.assert_close(got, want, **close, msg=name)
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize('case', CASES)
def test_what_is_trained_matches_official(case):
    head = build(case, torch.float64)
    ours = {k for k, p in head.named_parameters() if p.requires_grad}
    official = {
        k: torch.empty(DATA[f'{case}/sd/{k}'].shape)
        for k in DATA[f'{case}/trainable'].tolist()
    }
    assert ours == set(ibot_head_to_ours(official))
