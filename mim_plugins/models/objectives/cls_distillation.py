"""Self-distillation of the [CLS] token across views."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor

from ..selfsup.outputs import Outputs
from .base import Objective, distribution_metrics


@MODELS.register_module()
class ClsDistillation(Objective):
    """Each view's [CLS] predicts the teacher's [CLS] of the other crops.

    Args:
        normalization (dict): N of the target, e.g. ``CentreSharpen``.
        loss (dict): L, e.g. ``CrossViewCrossEntropy``.
        student_groups (tuple[str]): groups of which the student's [CLS] is
            trained; the first holds the crops that the teacher sees too.
            Groups that a batch lacks are left out.
        weight (float): factor in the total loss.

    Source: iBOT, eq. 2 (the loss of DINO on masked global crops).
    """

    def __init__(
        self,
        normalization: dict,
        loss: dict | None = None,
        student_groups: tuple[str, ...] = ('global', 'local'),
        weight: float = 1.0,
    ):
        super().__init__(weight)
        self.normalization = MODELS.build(normalization)
        self.loss = MODELS.build(loss or dict(type='CrossViewCrossEntropy'))
        self.student_groups = tuple(student_groups)

    def from_logits(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Loss from logits, and note the teacher's for the centre.

        Args:
            student (Tensor): ``(V, B, K)``, the crops of the teacher first.
            teacher (Tensor): ``(Q, B, K)``.
        """
        target = self.normalization(teacher)
        self.normalization.observe(teacher)
        return self.loss(student, target)

    def forward(self, outputs: Outputs) -> Tensor:
        batch = outputs.batch_size
        with torch.no_grad():
            teacher = outputs.teacher_head.forward_cls(
                outputs.teacher['global'].cls
            )
            outputs.assignments = teacher[:batch].argmax(-1)
        groups = [g for g in self.student_groups if g in outputs.student]
        tokens = torch.cat([outputs.student[g].cls for g in groups])
        student = outputs.student_head.forward_cls(tokens)
        teacher = teacher.unflatten(0, (-1, batch))
        loss = self.from_logits(student.unflatten(0, (-1, batch)), teacher)
        if outputs.diagnose:
            self._diagnose(outputs, teacher, loss)
        return loss

    @torch.no_grad()
    def _diagnose(self, outputs: Outputs, teacher: Tensor, loss: Tensor):
        target = self.normalization(teacher).flatten(0, 1)
        outputs.metrics.update(distribution_metrics('cls', loss, target))
        used = torch.zeros_like(target[0])
        used[target.argmax(-1)] = 1
        outputs.metrics['cls_prototypes_used'] = used.mean()

    def after_optimizer_step(self) -> None:
        self.normalization.step()
