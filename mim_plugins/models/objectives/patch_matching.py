"""Self-distillation of patch tokens between two views, without masks."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor
from torch.nn import functional as F

from ..selfsup.outputs import Outputs, Tokens
from .base import Objective, distribution_metrics


def patch_centres(boxes: Tensor, grid: tuple[int, int]) -> Tensor:
    """Centres of all patches in the source picture.

    Args:
        boxes (Tensor): ``(B, 5)``: x, y, width, height of the crop in the
            source picture, and 1 if the crop was flipped.
        grid (tuple[int, int]): ``(h, w)`` patches.

    Returns:
        Tensor: ``(B, h * w, 2)``, x and y, row-major.
    """
    h, w = grid
    ys = (torch.arange(h, device=boxes.device) + 0.5) / h
    xs = (torch.arange(w, device=boxes.device) + 0.5) / w
    flipped = boxes[:, 4:5]
    x = xs * (1 - flipped) + (1 - xs) * flipped
    x = boxes[:, 0:1] + boxes[:, 2:3] * x
    y = boxes[:, 1:2] + boxes[:, 3:4] * ys
    x = x[:, None, :].expand(-1, h, -1)
    y = y[:, :, None].expand(-1, -1, w)
    return torch.stack([x, y], dim=-1).flatten(1, 2)


def match_by_position(
    student_boxes: Tensor, teacher_boxes: Tensor, grid: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The nearest teacher patch of each student patch in the source picture.

    Returns:
        index ``(B, N)`` into the teacher's patches, and weight ``(B, N)``:
        1 where the student's patch lies in the teacher's crop, else 0.
    """
    mine = patch_centres(student_boxes, grid)
    theirs = patch_centres(teacher_boxes, grid)
    index = torch.cdist(mine, theirs).argmin(-1)
    low = teacher_boxes[:, None, :2]
    high = low + teacher_boxes[:, None, 2:4]
    inside = ((mine >= low) & (mine <= high)).all(-1)
    return index, inside.to(mine.dtype)


def match_by_feature(student: Tensor, teacher: Tensor) -> Tensor:
    """The most similar teacher patch (cosine) of each student patch.

    Args:
        student (Tensor): ``(B, N, D)`` tokens.
        teacher (Tensor): ``(B, M, D)`` tokens.

    Returns:
        Tensor: ``(B, N)`` index into the teacher's patches.
    """
    similarity = F.normalize(student, dim=-1) @ F.normalize(
        teacher, dim=-1
    ).transpose(1, 2)
    return similarity.argmax(-1)


@MODELS.register_module()
class PatchMatching(Objective):
    """Patch tokens of one view predict matched tokens of the other views.

    Args:
        match (str): ``'position'``: the nearest patch in the source picture,
            over the overlap of the views; ``'feature'``: the most similar
            patch by the backbones' tokens.
        normalization, loss, weight: as in ``MaskedPatchDistillation``.

    Source: iBOT, Appendix E, alternatives to MIM (pos. and feat.).
    """

    def __init__(
        self,
        match: str,
        normalization: dict,
        loss: dict | None = None,
        weight: float = 1.0,
    ):
        super().__init__(weight)
        if match not in ('position', 'feature'):
            raise ValueError(f"match='{match}': use 'position' or 'feature'.")
        self.match = match
        self.normalization = MODELS.build(normalization)
        self.loss = MODELS.build(loss or dict(type='SoftCrossEntropy'))

    def forward(self, outputs: Outputs) -> Tensor:
        student, teacher = outputs.student['global'], outputs.teacher['global']
        with torch.no_grad():
            target_logits = outputs.teacher_head.forward_patch(teacher.patches)
            self.normalization.observe(target_logits)
            target = self.normalization(target_logits)
        logits = outputs.student_head.forward_patch(student.patches)
        views = range(student.num_views)
        pairs = [(u, v) for u in views for v in views if u != v]
        if not pairs:
            raise ValueError(
                'PatchMatching compares two global crops of a picture, but '
                'the batch has one. Add a second view of group "global".'
            )
        batch = outputs.batch_size
        total = logits.new_zeros((), dtype=torch.float32)
        for u, v in pairs:
            rows_u = slice(u * batch, (u + 1) * batch)
            rows_v = slice(v * batch, (v + 1) * batch)
            index, weight = self._match(outputs, rows_u, rows_v, student)
            matched = target[rows_u].gather(
                1, index[..., None].expand(-1, -1, target.shape[-1])
            )
            share = weight / weight.sum(1, keepdim=True).clamp_min(1) / batch
            total = total + self.loss(
                logits[rows_v].flatten(0, 1),
                matched.flatten(0, 1),
                share.flatten(),
            )
        loss = total / len(pairs)
        if outputs.diagnose:
            outputs.metrics.update(
                distribution_metrics('patch', loss, target.flatten(0, 1))
            )
        return loss

    @torch.no_grad()
    def _match(
        self,
        outputs: Outputs,
        teacher_rows: slice,
        student_rows: slice,
        student: Tokens,
    ) -> tuple[Tensor, Tensor]:
        if self.match == 'position':
            boxes = outputs.boxes['global']
            return match_by_position(
                boxes[student_rows], boxes[teacher_rows], student.grid
            )
        index = match_by_feature(
            student.patches[student_rows],
            outputs.teacher['global'].patches[teacher_rows],
        )
        return index, torch.ones_like(index, dtype=torch.float32)

    def after_optimizer_step(self) -> None:
        self.normalization.step()
