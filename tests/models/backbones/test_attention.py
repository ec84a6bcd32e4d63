import pytest
import torch
import torch.nn.functional as F

from mim_plugins.models.backbones import select_attention


def make_qkv(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(2, 3, 7, 8, generator=generator).to(dtype)
        for _ in range(3)
    ]


def test_explicit_equals_the_fused_kernel():
    qkv = make_qkv(torch.float64)
    explicit = select_attention('explicit')(*qkv)
    torch.testing.assert_close(explicit, F.scaled_dot_product_attention(*qkv))


def test_auto_is_explicit_in_bfloat16_on_a_cpu():
    qkv = make_qkv(torch.bfloat16)
    auto = select_attention('auto')(*qkv)
    assert torch.equal(auto, select_attention('explicit')(*qkv))
    # the kernels round differently, so the line above can tell them apart
    assert not torch.equal(auto, select_attention('sdpa')(*qkv))


def test_auto_is_the_fused_kernel_otherwise():
    qkv = make_qkv(torch.float32)
    auto = select_attention('auto')(*qkv)
    assert torch.equal(auto, select_attention('sdpa')(*qkv))
    assert not torch.equal(auto, select_attention('explicit')(*qkv))


@pytest.mark.parametrize('name', ['auto', 'explicit'])
def test_weights_are_dropped_and_rescaled(name):
    query, key, _ = make_qkv(torch.bfloat16)
    value = torch.ones_like(query)
    torch.manual_seed(0)
    kernel = select_attention(name)
    dropped = kernel(query, key, value, dropout_p=0.5).float()
    assert dropped.std() > 0.05
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.3)


def test_unknown_kernel_is_named():
    with pytest.raises(ValueError, match="'flash'.*'auto', 'sdpa'"):
        select_attention('flash')
