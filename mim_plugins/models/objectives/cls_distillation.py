"""Self-distillation of the [CLS] token across views."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor

from ..selfsup.outputs import Outputs
from .base import (
    Objective,
    distribution_metrics,
    mean_entropy,
    require_group,
)


@MODELS.register_module()
class ClsDistillation(Objective):
    """Each view's [CLS] predicts the teacher's [CLS] of the other crops.

    Args:
        normalization (dict): N of the target, e.g. ``CentreSharpen``.
        loss (dict): L, e.g. ``CrossViewCrossEntropy``.
        student_groups (tuple[str]): groups of which the student's [CLS] is
            trained. The first must be there; others that a batch lacks are
            left out. ``'global'`` and ``'global_unmasked'`` are the crops
            that the teacher sees too.
        weight (float): factor in the total loss.

    Source: iBOT, eq. 2 (the loss of DINO on masked global crops).
    """

    tokens = 'cls'
    student_patches = 'none'

    def __init__(
        self,
        normalization: dict,
        loss: dict | None = None,
        student_groups: tuple[str, ...] = ('global', 'local'),
        weight: float = 1.0,
    ):
        super().__init__(weight)
        self.normalization = MODELS.build(normalization)
        self.loss = MODELS.build(loss or {'type': 'CrossViewCrossEntropy'})
        self.trained_groups = tuple(student_groups)

    def student_groups(self, groups: list[str], masked: list[str]) -> set[str]:
        require_group(self.trained_groups[0], groups, self)
        return set(self.trained_groups) & set(groups)

    def from_logits(
        self,
        student: Tensor,
        teacher: Tensor,
        source: list[int] | None = None,
    ) -> Tensor:
        """Loss from logits, and note the teacher's for the centre.

        Args:
            student (Tensor): ``(V, B, K)``.
            teacher (Tensor): ``(Q, B, K)``.
            source (list[int], optional): which student views are crops of
                the teacher, see :func:`cross_view_cross_entropy`.
        """
        target = self.normalization(teacher)
        self.normalization.observe(teacher)
        return self.loss(student, target, source)

    def forward(self, outputs: Outputs) -> Tensor:
        batch = outputs.batch_size
        groups = [g for g in self.trained_groups if g in outputs.student]
        source = self._source(outputs, groups)
        with torch.no_grad():
            teacher = outputs.teacher_head.forward_cls(
                outputs.teacher['global'].cls
            )
            outputs.assignments = teacher[:batch].argmax(-1)
        tokens = torch.cat([outputs.student[g].cls for g in groups])
        student = outputs.student_head.forward_cls(tokens)
        loss = self.from_logits(
            student.unflatten(0, (-1, batch)),
            teacher.unflatten(0, (-1, batch)),
            source,
        )
        if outputs.diagnose:
            self._diagnose(outputs, teacher, loss)
        return loss

    def _source(self, outputs: Outputs, groups: list[str]) -> list[int]:
        """For each student view the teacher's view of the same crop, or -1."""
        source: list[int] = []
        for group in groups:
            views = range(outputs.student[group].num_views)
            shared = group in ('global', 'global_unmasked')
            source.extend(v if shared else -1 for v in views)
        if set(source) == {0}:
            raise ValueError(
                'ClsDistillation compares different crops of a picture, but '
                'the batch has one. Add another view of group "global" or '
                '"local".'
            )
        return source

    @torch.no_grad()
    def _diagnose(self, outputs: Outputs, teacher: Tensor, loss: Tensor):
        target = self.normalization(teacher)
        outputs.metrics.update(
            distribution_metrics(loss, mean_entropy(target))
        )
        used = torch.zeros_like(target[0])
        used[target.argmax(-1)] = 1
        outputs.metrics['prototypes_used'] = used.mean()

    def after_optimizer_step(self, halted: Tensor | None = None) -> None:
        self.normalization.step(halted)
