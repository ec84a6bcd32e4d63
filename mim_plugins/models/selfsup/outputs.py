"""The typed record that objectives read."""

from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass
class Tokens:
    """Tokens of all views of one group, crop-major (all B of view 0 first).

    Args:
        tokens (Tensor): ``(V * B, 1 + N, D)`` after the final norm.
        num_views (int): V.
        grid (tuple[int, int]): ``(h, w)`` with ``h * w = N``.
    """

    tokens: Tensor
    num_views: int
    grid: tuple[int, int]

    @property
    def cls(self) -> Tensor:
        """``(V * B, D)``."""
        return self.tokens[:, 0]

    @property
    def patches(self) -> Tensor:
        """``(V * B, N, D)``."""
        return self.tokens[:, 1:]

    def patches_at(self, index: Tensor) -> Tensor:
        """Patch tokens at flat positions, without a copy of the others.

        Args:
            index (Tensor): ``(M,)``, in ``[0, V * B * N)``.

        Returns:
            Tensor: ``(M, D)``.
        """
        crop = index // (self.tokens.shape[1] - 1)
        # every crop has its [CLS] token before its patches
        return self.tokens.flatten(0, 1).index_select(0, index + crop + 1)


@dataclass
class Outputs:
    """What teacher and student made of one batch.

    Args:
        batch_size (int): B, images on this process.
        views (dict[str, Tensor]): normalised pictures by group,
            ``(V * B, C, H, W)``.
        student (dict[str, Tokens]): by group, of those that an objective
            asked for; ``'<group>_unmasked'`` where the student saw a masked
            group without its masks too.
        teacher (dict[str, Tokens]): likewise; unmasked views only.
        masks (dict[str, dict]): by group, as made by the collate function:
            ``mask`` ``(V * B, N)``, flat ``index`` ``(M,)``, ``weight``
            ``(M,)``, ``count``, ``grid``.
        boxes (dict[str, Tensor]): by group, ``(V * B, 5)``: x, y, width,
            height in the source picture, and 1 if flipped.
        student_head, teacher_head: what turns tokens into logits.
        diagnose (bool): whether objectives add their diagnostics.
        assignments (Tensor, optional): ``(B,)``, written by the [CLS]
            objective.
        metrics (dict[str, Tensor]): scalars for the log of one objective,
            which are logged below its name.
    """

    batch_size: int
    views: dict[str, Tensor]
    student: dict[str, Tokens]
    teacher: dict[str, Tokens]
    masks: dict[str, dict]
    boxes: dict[str, Tensor]
    student_head: nn.Module | None = None
    teacher_head: nn.Module | None = None
    diagnose: bool = False
    assignments: Tensor | None = None
    metrics: dict[str, Tensor] = field(default_factory=dict)
