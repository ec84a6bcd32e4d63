"""What all objectives share."""

import torch
from mmengine.model import BaseModule
from torch import Tensor

from ..selfsup.outputs import Outputs


class Objective(BaseModule):
    """A part of the loss: outputs of a batch in, a scalar out.

    Args:
        weight (float): the factor of the part in the total loss.

    An objective names the view groups of which it needs the tokens of
    teacher and student, so that nothing else is computed, and may hold state
    (centres) that moves in :meth:`after_optimizer_step`.
    """

    tokens = 'patch'
    """Whether logits of ``'cls'`` or of ``'patch'`` tokens are compared."""

    student_patches = 'all'
    """Patch tokens of the student that are read: all, 'masked' or 'none'."""

    def __init__(self, weight: float = 1.0, init_cfg: dict | None = None):
        super().__init__(init_cfg)
        self.weight = weight

    def teacher_groups(self, groups: list[str], masked: list[str]) -> set[str]:
        """Groups that the teacher must see (without masks).

        Args:
            groups: all groups that the student can see.
            masked: those that have masks.

        Raises:
            ValueError: if a group that cannot be done without is missing.
        """
        return {require_group('global', groups, self)}

    def student_groups(self, groups: list[str], masked: list[str]) -> set[str]:
        """Groups that the student must see; as :meth:`teacher_groups`."""
        return {require_group('global', groups, self)}

    def forward(self, outputs: Outputs) -> Tensor:
        """The loss, without :attr:`weight`."""
        raise NotImplementedError

    def after_optimizer_step(self, halted: Tensor | None = None) -> None:
        """Move what moves once per optimizer step.

        Args:
            halted (Tensor, optional): bool, 0-dim, on the device: where it is
                set, everything must stay as it is (see
                ``PretrainOptimWrapper``).
        """


def require_group(name: str, groups: list[str], objective: Objective) -> str:
    """The name of a view group that an objective cannot do without."""
    if name not in groups:
        hint = (
            'set model.unmasked_global=True'
            if name.endswith('_unmasked')
            else f"give views of train_dataloader.dataset.views group='{name}'"
        )
        raise ValueError(
            f"{type(objective).__name__} needs views of the group '{name}', "
            f'but there are only {sorted(groups)}: {hint}.'
        )
    return name


@torch.no_grad()
def mean_entropy(target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean entropy of distributions, in nats.

    Args:
        target (Tensor): ``(M, K)``.
        weight (Tensor, optional): ``(M,)``; the weighted sum is returned.
    """
    entropy = torch.special.entr(target).sum(-1)
    return entropy.mean() if weight is None else (entropy * weight).sum()


def distribution_metrics(
    cross_entropy: Tensor, entropy: Tensor
) -> dict[str, Tensor]:
    """Entropy of the targets and KL from target to student, apart.

    Args:
        cross_entropy (Tensor): scalar, a mean over distributions.
        entropy (Tensor): scalar, the mean over the same ones.
    """
    return {
        'target_entropy': entropy,
        'kl': cross_entropy.detach() - entropy,
    }
