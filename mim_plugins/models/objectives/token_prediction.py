"""Prediction of a frozen tokenizer's tokens at masked positions."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor

from ..selfsup.outputs import Outputs
from .base import Objective, distribution_metrics, masked_crops


@MODELS.register_module()
class TokenPrediction(Objective):
    """Masked tokens predict what a frozen tokenizer says of the full view.

    Args:
        tokenizer (dict): ``DALLETokenizer`` (ids) or ``FrozenTokenizer``
            (distributions).
        loss (dict): L, e.g. ``SoftCrossEntropy``.
        weight (float): factor in the total loss.

    Crops are averaged as in ``MaskedPatchDistillation``.

    Source: iBOT, Table 4 (a standalone DINO or DALL-E as the tokenizer; DINO
    and BEiT as two tasks), after BEiT's masked image modelling.
    """

    def __init__(
        self,
        tokenizer: dict,
        loss: dict | None = None,
        weight: float = 1.0,
    ):
        super().__init__(weight)
        self.tokenizer = MODELS.build(tokenizer)
        self.loss = MODELS.build(loss or dict(type='SoftCrossEntropy'))

    def teacher_groups(self, groups, masked):
        return set()

    def forward(self, outputs: Outputs) -> Tensor:
        crops = masked_crops(outputs)
        total, targets, weights = 0.0, [], []
        for group, mask in outputs.masks.items():
            index, weight = mask['index'], mask['weight']
            student = outputs.student[group]
            logits = outputs.student_head.forward_patch(
                student.patches.flatten(0, 1)[index]
            )
            target = self._target(
                outputs.views[group], student.grid, index, logits.shape[-1]
            )
            total = total + self.loss(logits, target, weight) / crops
            targets.append(target)
            weights.append(weight / crops)
        if outputs.diagnose:
            weight = torch.cat(weights)
            share = weight.sum().clamp_min(1e-12)
            outputs.metrics.update(
                distribution_metrics(
                    'patch', total / share, torch.cat(targets), weight / share
                )
            )
        return total

    @torch.no_grad()
    def _target(
        self, views: Tensor, grid: tuple[int, int], index: Tensor, classes: int
    ) -> Tensor:
        """``(M, K)``; ids become one-hot."""
        tokens = self.tokenizer(views, grid).flatten(0, 1)[index]
        known = self.tokenizer.num_tokens
        if known != classes:
            raise ValueError(
                f'The tokenizer has {known} tokens, but the head predicts '
                f'{classes}: set model.head.patch_out_dim={known}.'
            )
        if tokens.dim() > 1:
            return tokens
        one_hot = torch.zeros(len(tokens), known, device=tokens.device)
        return one_hot.scatter_(1, tokens[:, None], 1.0)
