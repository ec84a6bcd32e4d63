"""Self-distillation of masked patch tokens (iBOT's masked image modelling)."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor

from ..selfsup.outputs import Outputs
from .masked import MaskedObjective


@MODELS.register_module()
class MaskedPatchDistillation(MaskedObjective):
    """Masked tokens predict the teacher's tokens of the unmasked view.

    Args:
        normalization (dict): N of the target, e.g. ``CentreSharpen``.
        loss, weight: as in :class:`MaskedObjective`.
        centre_tokens (str): ``'all'``: the centre averages over every patch
            token of the teacher (official code); ``'masked'``: over the
            masked ones.

    Source: iBOT, eq. 3.
    """

    def __init__(
        self,
        normalization: dict,
        loss: dict | None = None,
        centre_tokens: str = 'all',
        weight: float = 1.0,
    ):
        super().__init__(loss, weight)
        if centre_tokens not in ('all', 'masked'):
            raise ValueError(
                f"centre_tokens='{centre_tokens}': use 'all' or 'masked'."
            )
        self.normalization = MODELS.build(normalization)
        self.centre_tokens = centre_tokens

    def teacher_groups(self, groups: list[str], masked: list[str]) -> set[str]:
        return set(masked)

    def from_logits(
        self, student: Tensor, teacher: Tensor, weight: Tensor, crops: int
    ) -> Tensor:
        """:meth:`from_target` with the teacher's logits ``(M, KP)``."""
        target = self.normalization(teacher)
        return self.from_target(student, target, weight, crops)

    def target(self, outputs: Outputs, group: str) -> Tensor:
        return self.normalization(self._teacher_logits(outputs, group))

    @torch.no_grad()
    def _teacher_logits(self, outputs: Outputs, group: str) -> Tensor:
        """Logits ``(M, KP)`` of masked tokens; notes the centre's mean.

        The last layer is linear: the mean logit of all tokens is the logit
        of the mean bottleneck vector, so that only masked tokens pass it.
        """
        head, tokens = outputs.teacher_head, outputs.teacher[group]
        mask = outputs.masks[group]
        if self.centre_tokens == 'masked':
            logits = head.forward_patch(
                tokens.patches_at(mask['index']), mask['weight'] > 0
            )
            if mask['count']:
                self.normalization.observe(logits[: mask['count']])
            return logits
        vectors = head.project_patch(tokens.patches).flatten(0, 1)
        with torch.autocast(vectors.device.type, enabled=False):
            mean = vectors.mean(0, dtype=head.patch_prototypes.weight.dtype)
            self.normalization.observe_mean(
                head.patch_prototypes(mean), len(vectors)
            )
        return head.patch_prototypes(vectors.index_select(0, mask['index']))

    def after_optimizer_step(self, halted: Tensor | None = None) -> None:
        self.normalization.step(halted)
