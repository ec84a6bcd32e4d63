"""The typed record that objectives read."""

from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass
class Tokens:
    """Tokens of all views of one group, crop-major (all B of view 0 first).

    Args:
        tokens (Tensor): after the final norm: ``(V * B, 1 + N, D)``, or with
            ``index`` ``(V * B + M, D)``, all [CLS] tokens first.
        num_views (int): V.
        grid (tuple[int, int]): ``(h, w)`` with ``h * w = N``.
        index (Tensor, optional): ``(M,)``, flat positions in ``V * B * N``
            of the patches that were computed; None for all of them.
    """

    tokens: Tensor
    num_views: int
    grid: tuple[int, int]
    index: Tensor | None = None

    @property
    def crops(self) -> int:
        """``V * B``."""
        if self.index is None:
            return len(self.tokens)
        return len(self.tokens) - len(self.index)

    @property
    def cls(self) -> Tensor:
        """``(V * B, D)``."""
        if self.index is None:
            return self.tokens[:, 0]
        return self.tokens[: self.crops]

    @property
    def patches(self) -> Tensor:
        """``(V * B, N, D)``.

        Raises:
            ValueError: if not all of them were computed.
        """
        if self.index is not None:
            raise ValueError(
                'Only some patch tokens were computed. An objective that '
                "reads all of them says so with student_patches = 'all'."
            )
        return self.tokens[:, 1:]

    def patches_at(self, index: Tensor) -> Tensor:
        """Patch tokens at flat positions, without a copy of the others.

        Args:
            index (Tensor): ``(M,)``, in ``[0, V * B * N)``; :attr:`index`
                itself where only those were computed.

        Returns:
            Tensor: ``(M, D)``.
        """
        if self.index is not None:
            if index is not self.index:
                raise ValueError(
                    'Patch tokens of other positions were computed than '
                    'those asked for.'
                )
            return self.tokens[self.crops :]
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
