"""Cross-entropies against their literal forms."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mim_plugins.models.losses import cross_entropy
from mim_plugins.models.losses.cross_entropy import (
    CrossViewCrossEntropy,
    SoftCrossEntropy,
    cross_view_cross_entropy,
    soft_cross_entropy,
)

NAMES = {
    SoftCrossEntropy: 'soft_cross_entropy',
    CrossViewCrossEntropy: 'cross_view_cross_entropy',
}
CLOSE = dict(rtol=1e-10, atol=1e-12)


@given(
    views=st.integers(1, 5),
    queries=st.integers(1, 3),
    batch=st.integers(1, 3),
    moved=st.booleans(),
    seed=st.integers(0, 99),
)
def test_cross_view_is_the_mean_over_pairs(views, queries, batch, moved, seed):
    torch.manual_seed(seed)
    logits = torch.randn(views, batch, 6, dtype=torch.float64) * 3
    logits.requires_grad_()
    target = torch.randn(queries, batch, 6, dtype=torch.float64).softmax(-1)
    source = [v if v < queries else -1 for v in range(views)]
    if moved:
        source = source[::-1]
    terms = [
        -(target[q] * logits[v].log_softmax(-1)).sum(-1).mean()
        for q in range(queries)
        for v in range(views)
        if source[v] != q
    ]
    got = cross_view_cross_entropy(logits, target, source if moved else None)
    if not terms:
        assert got == 0
        return
    want = torch.stack(terms).mean()
    torch.testing.assert_close(got, want, **CLOSE)
    torch.testing.assert_close(
        torch.autograd.grad(got, logits)[0],
        torch.autograd.grad(want, logits)[0],
        **CLOSE,
    )


@given(rows=st.integers(1, 6), seed=st.integers(0, 99))
def test_soft_cross_entropy_is_minus_t_log_p(rows, seed):
    torch.manual_seed(seed)
    logits = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    target = torch.randn(rows, 5, dtype=torch.float64).softmax(-1)
    weight = torch.rand(rows, dtype=torch.float64)
    each = -(target * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(
        soft_cross_entropy(logits, target), each.mean(), **CLOSE
    )
    got = soft_cross_entropy(logits, target, weight)
    torch.testing.assert_close(got, (each * weight).sum(), **CLOSE)


@pytest.mark.parametrize('loss', [SoftCrossEntropy, CrossViewCrossEntropy])
def test_no_gradient_reaches_the_target_and_losses_are_float32(loss):
    shape = (2, 3, 4) if loss is CrossViewCrossEntropy else (3, 4)
    logits = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    raw = torch.randn(shape, requires_grad=True)
    value = loss(0.1)(logits, raw.softmax(-1))
    value.backward()
    assert value.dtype == torch.float32
    assert raw.grad is None and logits.grad.abs().sum() > 0


@pytest.mark.parametrize('loss', [SoftCrossEntropy, CrossViewCrossEntropy])
def test_half_precision_is_widened_before_any_arithmetic(loss):
    shape = (2, 3, 40) if loss is CrossViewCrossEntropy else (3, 40)
    logits = torch.randn(shape).bfloat16()
    target = torch.randn(shape).softmax(-1).bfloat16()
    for function in (loss(0.07), getattr(cross_entropy, NAMES[loss])):
        got = function(logits, target)
        assert got.dtype == torch.float32
        assert torch.equal(got, function(logits.float(), target.float()))


def test_temperature_divides_the_logits():
    logits, target = torch.randn(3, 4), torch.rand(3, 4).softmax(-1)
    torch.testing.assert_close(
        SoftCrossEntropy(0.5)(logits, target),
        soft_cross_entropy(2 * logits, target),
    )
    with pytest.raises(ValueError, match='temperature=0'):
        SoftCrossEntropy(0)
