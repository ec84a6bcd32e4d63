"""What objectives on masked patch tokens share."""

from abc import abstractmethod

from mmpretrain.registry import MODELS
from torch import Tensor

from ..selfsup.outputs import Outputs
from .base import Objective, distribution_metrics, mean_entropy


class MaskedObjective(Objective):
    """The student's masked tokens predict a distribution each.

    Losses of one crop are averaged over its masked tokens, and then over all
    crops of the groups with masks; a crop without masked tokens counts as
    zero.

    Args:
        loss (dict, optional): L, ``SoftCrossEntropy`` by default.
        weight (float): factor in the total loss.
    """

    student_patches = 'masked'

    def __init__(self, loss: dict | None = None, weight: float = 1.0):
        super().__init__(weight)
        self.loss = MODELS.build(loss or {'type': 'SoftCrossEntropy'})

    def student_groups(self, groups: list[str], masked: list[str]) -> set[str]:
        if not masked:
            raise ValueError(
                f'{type(self).__name__} needs masks, but the batch has none. '
                "Set train_dataloader.dataset.mask=dict(type='BlockMask', "
                'patch_size=...), or switch the objective off with '
                'model.objectives.<name>=None.'
            )
        return set(masked)

    @abstractmethod
    def target(self, outputs: Outputs, group: str) -> Tensor:
        """Distributions ``(M, K)`` at the masked positions of a group."""

    def from_target(
        self, student: Tensor, target: Tensor, weight: Tensor, crops: int
    ) -> Tensor:
        """Loss from the student's logits.

        Args:
            student (Tensor): ``(M, K)``, logits of masked tokens.
            target (Tensor): ``(M, K)``, rows sum to one.
            weight (Tensor): ``(M,)``, 1 / masked tokens of the crop; zero
                for padding.
            crops (int): number of crops, those without a mask too.

        Raises:
            ValueError: if the two K differ.
        """
        known, predicted = target.shape[-1], student.shape[-1]
        if known != predicted:
            raise ValueError(
                f'{type(self).__name__}: targets have {known} tokens, but '
                f'the head predicts {predicted}: set '
                f'model.head.patch_out_dim={known}.'
            )
        return self.loss(student, target, weight) / crops

    def forward(self, outputs: Outputs) -> Tensor:
        crops = sum(outputs.student[g].crops for g in outputs.masks)
        loss = entropy = share = 0.0
        for group, mask in outputs.masks.items():
            weight = mask['weight']
            tokens = outputs.student[group].patches_at(mask['index'])
            student = outputs.student_head.forward_patch(tokens, weight > 0)
            target = self.target(outputs, group)
            loss = loss + self.from_target(student, target, weight, crops)
            if outputs.diagnose:
                entropy = entropy + mean_entropy(target, weight / crops)
                share = share + weight.sum() / crops
        masked = any(mask['count'] for mask in outputs.masks.values())
        if outputs.diagnose and masked:
            # of a masked token: crops without masks do not dilute it
            outputs.metrics.update(
                distribution_metrics(loss / share, entropy / share)
            )
        return loss
