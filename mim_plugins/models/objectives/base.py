"""What all objectives share."""

import torch
from mmengine.model import BaseModule
from torch import Tensor

from ..selfsup.outputs import Outputs


class Objective(BaseModule):
    """A part of the loss: outputs of a batch in, a scalar out.

    Args:
        weight (float): the factor of the part in the total loss.

    An objective names the view groups of which it needs the teacher's tokens
    in :meth:`teacher_groups`, and may hold state (centres) that moves in
    :meth:`after_optimizer_step`.
    """

    def __init__(self, weight: float = 1.0, init_cfg: dict | None = None):
        super().__init__(init_cfg)
        self.weight = weight

    def teacher_groups(self, groups: list[str], masked: list[str]) -> set:
        """Groups that the teacher must see.

        Args:
            groups: all view groups of the batch.
            masked: those that have masks.
        """
        return {'global'} & set(groups)

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, without :attr:`weight`."""
        raise NotImplementedError

    def after_optimizer_step(self) -> None:
        """Move what moves once per optimizer step."""


def masked_crops(outputs: Outputs) -> int:
    """Number of crops in the groups that have masks.

    Raises:
        ValueError: when the batch has no masks at all.
    """
    if not outputs.masks:
        raise ValueError(
            'This objective needs masks, but the batch has none. Set '
            "train_dataloader.dataset.mask=dict(type='BlockMask', "
            'patch_size=...), or switch the objective off with '
            'model.objectives.patch=None.'
        )
    return sum(len(outputs.student[g].tokens) for g in outputs.masks)


@torch.no_grad()
def distribution_metrics(
    name: str, cross_entropy: Tensor, target: Tensor, weight=None
) -> dict[str, Tensor]:
    """Entropy of the targets and KL from target to student, apart.

    Args:
        name (str): prefix in the log.
        cross_entropy (Tensor): scalar mean over the rows of ``target``.
        target (Tensor): ``(M, K)``.
        weight (Tensor, optional): ``(M,)``, summing to one.
    """
    entropy = -(target * target.clamp_min(1e-12).log()).sum(-1)
    entropy = entropy.mean() if weight is None else (entropy * weight).sum()
    return {
        f'{name}_target_entropy': entropy,
        f'{name}_kl': cross_entropy.detach() - entropy,
    }
