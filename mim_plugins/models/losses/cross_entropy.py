"""Cross-entropies between a student's logits and a teacher's distribution."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor, nn


def soft_cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Cross-entropy between logits and a distribution.

    Args:
        logits (Tensor): ``(M, K)``, already divided by the student
            temperature.
        target (Tensor): ``(M, K)``, rows sum to one; no gradient flows into
            it.
        weight (Tensor, optional): ``(M,)``, e.g. 1 / masked tokens of the
            image.

    Returns:
        Tensor: scalar in float32 (float64 for float64 logits): the weighted
        sum, or the mean over rows when there is no weight.

    Source: iBOT, eq. 3; logsumexp form, so that log-softmax is never stored.
    """
    logits = _at_least_float32(logits)
    entropy = logits.logsumexp(-1) - (target.detach() * logits).sum(-1)
    return entropy.mean() if weight is None else (entropy * weight).sum()


def cross_view_cross_entropy(
    logits: Tensor, target: Tensor, source: list[int] | None = None
) -> Tensor:
    """Mean cross-entropy over all pairs of different views.

    Every teacher view q is a target for every student view v that was not
    made from the same crop.  The sum over v goes through the inner product,
    ``sum_v <t_q, s_v> = <t_q, sum_v s_v>``, so each view is read once.

    Args:
        logits (Tensor): ``(V, B, K)``, student, divided by its temperature.
        target (Tensor): ``(Q, B, K)``, teacher; rows sum to one.
        source (list[int], optional): for each student view the index of the
            teacher view of the same crop, or -1. By default the first Q
            student views are those of the teacher.

    Returns:
        Tensor: scalar.  Zero if there is no pair.

    Source: DINO's [CLS] loss as in iBOT, eq. 2, with multi-crop.
    """
    logits = _at_least_float32(logits)
    target = target.detach()
    views, queries = logits.shape[0], target.shape[0]
    if source is None:
        source = [v if v < queries else -1 for v in range(views)]
    log_sum = logits.logsumexp(-1).mean(-1)
    total, pairs = logits.new_zeros(()), 0
    logits_sum = logits.sum(0)
    for q in range(queries):
        same = [v for v in range(views) if source[v] == q]
        if len(same) == views:
            continue
        summed, normalizer = logits_sum, log_sum.sum()
        for v in same:
            summed = summed - logits[v]
            normalizer = normalizer - log_sum[v]
        dot = (target[q] * summed).sum(-1).mean()
        total = total + normalizer - dot
        pairs += views - len(same)
    return total / max(pairs, 1)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


@MODELS.register_module()
class SoftCrossEntropy(nn.Module):
    """:func:`soft_cross_entropy` with the student's temperature.

    Args:
        temperature (float): divides the student's logits; above zero.
    """

    def __init__(self, temperature: float = 0.1):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f'temperature={temperature} must be above zero.')
        self.temperature = temperature

    def forward(
        self, logits: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> Tensor:
        logits = _at_least_float32(logits) / self.temperature
        return soft_cross_entropy(logits, target, weight)


@MODELS.register_module()
class CrossViewCrossEntropy(SoftCrossEntropy):
    """:func:`cross_view_cross_entropy` with the student's temperature."""

    def forward(
        self, logits: Tensor, target: Tensor, source: list[int] | None = None
    ) -> Tensor:
        logits = _at_least_float32(logits) / self.temperature
        return cross_view_cross_entropy(logits, target, source)
