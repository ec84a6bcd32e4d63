"""The masked ViT against numbers of the official iBOT and MSN encoders."""

import numpy as np
import pytest
import torch
from golden_files import golden
from mmpretrain.registry import MODELS

import mim_plugins  # noqa: F401
from mim_plugins.checkpoints import (
    ibot_backbone_to_ours,
    ours_to_ibot_backbone,
)

IBOT = golden('vit_tiny')
MSN = golden('msn_vit')
SIZES = IBOT.cases('x')
TOKENS = {torch.float64: 1e-10, torch.float32: 3e-5}
dtypes = pytest.mark.parametrize('dtype', TOKENS, ids=str)
sizes = pytest.mark.parametrize('size', SIZES)


def build_vit(z, pos_interpolation, dtype, **kwargs):
    hp = z.hp()
    width = hp['embed_dim']
    vit = MODELS.build(
        {
            'type': 'MaskedVisionTransformer',
            'arch': {
                'embed_dims': width,
                'num_layers': hp['depth'],
                'num_heads': hp['num_heads'],
                'feedforward_channels': int(width * hp['mlp_ratio']),
            },
            'img_size': hp['img_size'],
            'patch_size': hp['patch_size'],
            'in_channels': hp.get('in_chans', 3),
            'norm_cfg': {'type': 'LN', 'eps': hp['ln_eps']},
            'pos_interpolation': pos_interpolation,
            'out_type': 'cls_token',
            **kwargs,
        }
    )
    official = {
        name: torch.from_numpy(np.array(value)).to(dtype)
        for name, value in z.sub('sd').items()
        if not name.startswith('fc.')
    }
    vit.to(dtype).load_state_dict(ibot_backbone_to_ours(official))
    return vit.eval()


def shrink_inputs(vit, factor=1e-3):
    """The change of weights that makes the eps of LayerNorm visible."""
    with torch.no_grad():
        for param in (
            vit.cls_token,
            vit.pos_embed,
            *vit.patch_embed.parameters(),
        ):
            param.mul_(factor)


def close(actual, z, key, atol, rtol=0.0):
    assert actual.dtype in TOKENS
    np.testing.assert_allclose(
        actual.detach().double().numpy(), z[key], atol=atol, rtol=rtol
    )


@pytest.fixture(scope='module', params=TOKENS, ids=str)
def ibot_vit(request):
    return build_vit(IBOT, 'ibot', request.param)


def inputs_of(vit, size):
    dtype = vit.pos_embed.dtype
    return IBOT.tensor(f'{size}/x', dtype), TOKENS[dtype]


@sizes
def test_vit_tiny_position_embedding(ibot_vit, size):
    x, atol = inputs_of(ibot_vit, size)
    table = ibot_vit.position_embedding(ibot_vit.grid(x))
    close(table, IBOT, f'{size}/pos_embed', atol)


@sizes
def test_vit_tiny_teacher_tokens(ibot_vit, size):
    x, atol = inputs_of(ibot_vit, size)
    close(
        ibot_vit.forward_tokens(x), IBOT, f'{size}/teacher/tokens', atol=atol
    )


@sizes
def test_vit_tiny_student_tokens(ibot_vit, size):
    x, atol = inputs_of(ibot_vit, size)
    mask = IBOT.tensor(f'{size}/mask').flatten(1)
    tokens = ibot_vit.forward_tokens(x, mask)
    close(tokens, IBOT, f'{size}/student/tokens', atol)


@sizes
def test_vit_tiny_empty_mask_gives_teacher_tokens(ibot_vit, size):
    x, atol = inputs_of(ibot_vit, size)
    mask = torch.zeros_like(IBOT.tensor(f'{size}/mask')).flatten(1)
    tokens = ibot_vit.forward_tokens(x, mask)
    close(tokens, IBOT, f'{size}/teacher/tokens', atol)


@pytest.mark.parametrize('attention', ['explicit', 'sdpa'])
@dtypes
def test_vit_tiny_kernels_agree(attention, dtype):
    vit = build_vit(IBOT, 'ibot', dtype, attention=attention)
    x, atol = inputs_of(vit, SIZES[0])
    close(vit.forward_tokens(x), IBOT, f'{SIZES[0]}/teacher/tokens', atol)


@pytest.mark.parametrize('case', IBOT.cases('teacher/last_attention'))
def test_vit_tiny_last_attention(ibot_vit, case):
    x, _ = inputs_of(ibot_vit, case)
    attention = ibot_vit.last_attention(x)
    close(attention, IBOT, f'{case}/teacher/last_attention', 1e-6)


@pytest.mark.parametrize('case', IBOT.cases('teacher/cls_only'))
def test_vit_tiny_cls_only(ibot_vit, case):
    x, atol = inputs_of(ibot_vit, case)
    close(ibot_vit(x)[0], IBOT, f'{case}/teacher/cls_only', atol)


@pytest.mark.parametrize('case', IBOT.cases('teacher/last2_blocks_0'))
def test_vit_tiny_last_two_blocks(ibot_vit, case):
    x, atol = inputs_of(ibot_vit, case)
    for i, tokens in enumerate(ibot_vit.intermediate_tokens(x, n=2)):
        key = f'{case}/teacher/last2_blocks_{i}'
        close(tokens[:, : IBOT[key].shape[1]], IBOT, key, atol)


@dtypes
def test_vit_tiny_norm_eps(dtype):
    vit = build_vit(IBOT, 'ibot', dtype)
    shrink_inputs(vit)
    native = '{0}x{0}'.format(IBOT.hp()['img_size'])
    x, atol = inputs_of(vit, native)
    close(vit.forward_tokens(x), IBOT, 'eps_probe/teacher_tokens', atol)


@pytest.mark.parametrize('with_cp', [False, True])
@dtypes
def test_vit_tiny_gradients(dtype, with_cp):
    vit = build_vit(IBOT, 'ibot', dtype, with_cp=with_cp).train()
    count = IBOT['grad/r'].shape[1]
    native = IBOT.hp()['img_size']
    size = next(
        s
        for s in SIZES
        if s != f'{native}x{native}'
        and IBOT[f'{s}/teacher/tokens'].shape[1] == count
    )
    x, _ = inputs_of(vit, size)
    mask = IBOT.tensor(f'{size}/mask').flatten(1)
    tokens = vit.forward_tokens(x, mask)
    (tokens * IBOT.tensor('grad/r', dtype)).sum().backward()
    grads = ours_to_ibot_backbone(
        {name: p.grad for name, p in vit.named_parameters()}
    )
    expected = [k for k in IBOT.sub('grad') if k != 'r']
    assert 'masked_embed' in expected
    exact = dtype == torch.float64
    for name in expected:
        close(
            grads[name],
            IBOT,
            f'grad/{name}',
            atol=1e-9 if exact else 1e-4,
            rtol=1e-10 if exact else 1e-4,
        )


@pytest.mark.parametrize(
    'case', [c for c in MSN.cases('cls') if f'x_{c}' in MSN]
)
@dtypes
def test_msn_vit_encoder(case, dtype):
    vit = build_vit(MSN, 'msn', dtype, mask_token=False)
    x = MSN.tensor(f'x_{case}', dtype)
    atol = TOKENS[dtype]
    table = vit.position_embedding(vit.grid(x))
    close(table, MSN, f'{case}/pos_embed', atol)
    close(vit(x)[0], MSN, f'{case}/cls', atol)
    last_two = vit.intermediate_tokens(x, n=2, norm=False)
    side_by_side = torch.cat([t[:, 0] for t in last_two], dim=-1)
    close(side_by_side, MSN, f'{case}/cls_blocks2_unnormed', atol)


@dtypes
def test_msn_vit_norm_eps(dtype):
    vit = build_vit(MSN, 'msn', dtype, mask_token=False)
    shrink_inputs(vit)
    cls = vit(MSN.tensor('x_big', dtype))[0]
    close(cls, MSN, 'eps_probe/cls', TOKENS[dtype])
