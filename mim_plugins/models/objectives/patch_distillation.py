"""Self-distillation of masked patch tokens (iBOT's masked image modelling)."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor

from ..selfsup.outputs import Outputs, Tokens
from .base import Objective, distribution_metrics, masked_crops


@MODELS.register_module()
class MaskedPatchDistillation(Objective):
    """Masked tokens predict the teacher's tokens of the unmasked view.

    The cross-entropies of one crop are averaged over its masked tokens, and
    then over all crops; a crop without masked tokens counts as zero.

    Args:
        normalization (dict): N of the target, e.g. ``CentreSharpen``.
        loss (dict): L, e.g. ``SoftCrossEntropy``.
        centre_tokens (str): ``'all'``: the centre averages over every patch
            token of the teacher (official code); ``'masked'``: over the
            masked ones.
        weight (float): factor in the total loss.

    Source: iBOT, eq. 3.
    """

    def __init__(
        self,
        normalization: dict,
        loss: dict | None = None,
        centre_tokens: str = 'all',
        weight: float = 1.0,
    ):
        super().__init__(weight)
        if centre_tokens not in ('all', 'masked'):
            raise ValueError(
                f"centre_tokens='{centre_tokens}': use 'all' or 'masked'."
            )
        self.normalization = MODELS.build(normalization)
        self.loss = MODELS.build(loss or dict(type='SoftCrossEntropy'))
        self.centre_tokens = centre_tokens

    def teacher_groups(self, groups, masked):
        return set(masked)

    def from_logits(
        self, student: Tensor, teacher: Tensor, weight: Tensor, crops: int
    ) -> Tensor:
        """Loss from the logits of masked tokens.

        Args:
            student (Tensor): ``(M, KP)``.
            teacher (Tensor): ``(M, KP)``.
            weight (Tensor): ``(M,)``, 1 / masked tokens of the crop; zero
                for padding.
            crops (int): number of crops, those without a mask too.
        """
        target = self.normalization(teacher)
        return self.loss(student, target, weight) / crops

    def forward(self, outputs: Outputs) -> Tensor:
        crops = masked_crops(outputs)
        losses, targets, weights = [], [], []
        for group, mask in outputs.masks.items():
            index, weight = mask['index'], mask['weight']
            target = self._teacher_logits(outputs, outputs.teacher[group], mask)
            student = outputs.student_head.forward_patch(
                outputs.student[group].patches.flatten(0, 1)[index]
            )
            losses.append(self.from_logits(student, target, weight, crops))
            if outputs.diagnose:
                targets.append(self.normalization(target))
                weights.append(weight)
        loss = sum(losses)
        if outputs.diagnose:
            self._diagnose(outputs, loss, crops, targets, weights)
        return loss

    @torch.no_grad()
    def _teacher_logits(
        self, outputs: Outputs, tokens: Tokens, mask: dict
    ) -> Tensor:
        """Logits ``(M, KP)`` of masked tokens; notes the centre's mean.

        The last layer is linear: the mean logit of all tokens is the logit
        of the mean bottleneck vector, so that only masked tokens pass it.
        """
        head, index = outputs.teacher_head, mask['index']
        patches = tokens.patches.flatten(0, 1)
        if self.centre_tokens == 'masked':
            logits = head.forward_patch(patches[index])
            real = logits[: mask['count']]
            if mask['count']:
                self.normalization.observe(real)
            return logits
        vectors = head.project_patch(patches)
        with torch.autocast(vectors.device.type, enabled=False):
            mean = vectors.mean(0, dtype=head.patch_prototypes.weight.dtype)
            self.normalization.observe_mean(
                head.patch_prototypes(mean), len(vectors)
            )
        return head.patch_prototypes(vectors[index])

    @torch.no_grad()
    def _diagnose(self, outputs, loss, crops, targets, weights):
        weight = torch.cat(weights) / crops
        share = weight.sum().clamp_min(1e-12)
        outputs.metrics.update(
            distribution_metrics(
                'patch', loss / share, torch.cat(targets), weight / share
            )
        )

    def after_optimizer_step(self) -> None:
        self.normalization.step()
