"""Self-distillation of patch tokens between two views, without masks."""

import torch
from mmpretrain.registry import MODELS
from torch import Tensor
from torch.nn import functional as F

from ..selfsup.outputs import Outputs
from .base import Objective, distribution_metrics, mean_entropy


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

    Patches are a lattice, so the nearest one is found axis by axis: it is
    the one that the student's centre falls into, or the closest at the edge.

    Args:
        student_boxes, teacher_boxes (Tensor): ``(B, 5)``, see
            :func:`patch_centres`.
        grid (tuple[int, int]): ``(h, w)`` patches of either.

    Returns:
        index ``(B, N)`` into the teacher's patches, and weight ``(B, N)``:
        1 where the student's patch lies in the teacher's crop, else 0.
    """
    h, w = grid
    corner, size = teacher_boxes[:, None, :2], teacher_boxes[:, None, 2:4]
    position = (patch_centres(student_boxes, grid) - corner) / size
    inside = ((position >= 0) & (position <= 1)).all(-1)
    x, y = position.unbind(-1)
    flipped = teacher_boxes[:, 4:5]
    x = x * (1 - flipped) + (1 - x) * flipped
    column = (x * w).floor().clamp(0, w - 1)
    row = (y * h).floor().clamp(0, h - 1)
    return (row * w + column).long(), inside.to(position.dtype)


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
        self.loss = MODELS.build(loss or {'type': 'SoftCrossEntropy'})

    def forward(self, outputs: Outputs) -> Tensor:
        student, teacher = outputs.student['global'], outputs.teacher['global']
        views = range(student.num_views)
        pairs = [(u, v) for u in views for v in views if u != v]
        if not pairs:
            raise ValueError(
                'PatchMatching compares two global crops of a picture, but '
                'the batch has one. Add a second view of group "global".'
            )
        with torch.no_grad():
            target = outputs.teacher_head.forward_patch(teacher.patches)
            target = target.flatten(0, 1)
            self.normalization.observe(target)
            target = self.normalization(target)
        logits = outputs.student_head.forward_patch(student.patches)
        logits = logits.unflatten(0, (-1, outputs.batch_size))
        loss = entropy = share = 0.0
        for u, v in pairs:
            rows, weight = self._match(outputs, u, v)
            matched = target.index_select(0, rows)
            loss = loss + self.loss(logits[v].flatten(0, 1), matched, weight)
            if outputs.diagnose:
                entropy = entropy + mean_entropy(matched, weight)
                share = share + weight.sum()
        if outputs.diagnose:
            # of a matched token: pictures without overlap do not dilute it
            share = share.clamp_min(1e-12)
            outputs.metrics.update(
                distribution_metrics(loss / share, entropy / share)
            )
        return loss / len(pairs)

    @torch.no_grad()
    def _match(
        self, outputs: Outputs, teacher_view: int, student_view: int
    ) -> tuple[Tensor, Tensor]:
        """Teacher's patch and weight of each patch of a student's view.

        Returns:
            rows ``(B * N,)`` among all patches of the teacher, and weight
            ``(B * N,)``: 1 / matched patches of the picture / B, or 0.
        """
        batch, student = outputs.batch_size, outputs.student['global']
        theirs, mine = (
            slice(v * batch, (v + 1) * batch)
            for v in (teacher_view, student_view)
        )
        if self.match == 'position':
            boxes = outputs.boxes['global']
            index, weight = match_by_position(
                boxes[mine], boxes[theirs], student.grid
            )
        else:
            index = match_by_feature(
                student.patches[mine],
                outputs.teacher['global'].patches[theirs],
            )
            weight = torch.ones_like(index, dtype=torch.float32)
        weight = weight / weight.sum(1, keepdim=True).clamp_min(1) / batch
        crops = torch.arange(theirs.start, theirs.stop, device=index.device)
        rows = crops[:, None] * index.shape[1] + index
        return rows.flatten(), weight.flatten()

    def after_optimizer_step(self, halted: Tensor | None = None) -> None:
        self.normalization.step(halted)
