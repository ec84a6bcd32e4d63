import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mim_plugins.engine.optimizers import (
    clip_global_,
    clip_per_tensor_,
    gradient_norms,
)

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def gradients(sizes, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(n, generator=generator) for n in sizes]


@settings(deadline=None)
@given(sizes, st.floats(0.01, 5.0))
def test_per_tensor_never_exceeds_and_never_enlarges(sizes, max_norm):
    grads = gradients(sizes)
    before = [g.clone() for g in grads]
    clip_per_tensor_(grads, gradient_norms(grads), max_norm)
    for new, old in zip(grads, before):
        assert new.norm() <= max_norm * (1 + 1e-5)
        if old.norm() < max_norm - 1e-4:
            assert torch.equal(new, old)


@settings(deadline=None)
@given(sizes, st.floats(0.01, 5.0))
def test_global_is_that_of_torch(sizes, max_norm):
    grads = gradients(sizes)
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads]
    for parameter, grad in zip(parameters, grads):
        parameter.grad = grad.clone()
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    clip_global_(grads, gradient_norms(grads), max_norm)
    for parameter, grad in zip(parameters, grads):
        torch.testing.assert_close(grad, parameter.grad)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_norms_of_half_precision_are_float32(dtype):
    grads = [torch.ones(100, dtype=dtype)]
    norms = gradient_norms(grads)
    assert norms.dtype == torch.float32
    assert norms.item() == 10
