"""iBOT's loss as its formulas read, without any saving of work.

Every token goes through the whole head, every pair of views has its own
log-softmax, and centres average over stored logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Settings:
    """Numbers of one call: temperatures, momenta and weights."""

    student_temp: float = 0.1
    teacher_temp: float = 0.04
    teacher_patch_temp: float = 0.04
    centre_momentum: float = 0.9
    patch_centre_momentum: float = 0.9
    cls_weight: float = 1.0
    patch_weight: float = 1.0


def cls_loss(
    student: list[Tensor], teacher: list[Tensor], centre: Tensor, s: Settings
) -> Tensor:
    """Mean over pairs of different views; the teacher's crops come first.

    Args:
        student: V tensors ``(B, K)``.
        teacher: Q tensors ``(B, K)``.
        centre: ``(K,)``.
    """
    terms = []
    for q, t in enumerate(teacher):
        target = ((t - centre) / s.teacher_temp).softmax(-1).detach()
        for v, student_view in enumerate(student):
            if v == q:
                continue
            log_p = (student_view / s.student_temp).log_softmax(-1)
            terms.append(-(target * log_p).sum(-1).mean())
    return sum(terms) / len(terms)


def patch_loss(
    student: list[Tensor],
    teacher: list[Tensor],
    masks: list[Tensor],
    centre: Tensor,
    s: Settings,
) -> Tensor:
    """Mean over crops of the mean over their masked tokens.

    Args:
        student, teacher: a tensor ``(B, N, K)`` a crop.
        masks: a tensor ``(B, N)`` of bool a crop.
    """
    terms = []
    for logits, t, mask in zip(student, teacher, masks, strict=True):
        target = ((t - centre) / s.teacher_patch_temp).softmax(-1).detach()
        log_p = (logits / s.student_temp).log_softmax(-1)
        entropy = -(target * log_p).sum(-1) * mask
        terms.append((entropy.sum(-1) / mask.sum(-1).clamp(min=1)).mean())
    return sum(terms) / len(terms)


def moved_centre(centre: Tensor, logits: list[Tensor], momentum: float):
    """The centre after one step, from raw logits ``(..., K)``."""
    rows = torch.cat([x.flatten(0, -2) for x in logits]).detach()
    return centre * momentum + rows.mean(0) * (1 - momentum)


def all_tokens(
    backbone: nn.Module, views: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Every token of a backbone, ``(B, 1 + N, D)``, block by block."""
    tokens = backbone.embed(views, mask)
    for layer in backbone.layers:
        tokens = layer(tokens)
    return backbone.normalise(tokens)


def ibot_step(model: nn.Module, inputs: dict, s: Settings) -> dict:
    """Losses and centres of an ``IBOT`` model, computed literally.

    Only the model's modules are used, none of its objectives' code.

    Returns:
        dict: ``loss_cls``, ``loss_patch``, ``cls_centre``, ``patch_centre``.
    """
    num = inputs['num_views']
    masks = inputs['masks']['global']['mask']
    crops = inputs['views']['global']

    def heads(head: nn.Module, tokens: Tensor, views: int):
        cls, patches = head(tokens)
        return list(cls.chunk(views)), list(patches.chunk(views))

    student_cls, student_patch = heads(
        model.head, all_tokens(model.student, crops, masks), num['global']
    )
    with torch.no_grad():
        teacher_cls, teacher_patch = heads(
            model.teacher.head,
            all_tokens(model.teacher.backbone, crops),
            num['global'],
        )
    if 'local' in inputs['views']:
        tokens = all_tokens(model.student, inputs['views']['local'])
        student_cls += heads(model.head, tokens, num['local'])[0]
    masks = masks.chunk(num['global'])
    cls_centre = model.objectives['cls'].normalization.centre
    patch_centre = model.objectives['patch'].normalization.centre
    return {
        'loss_cls': s.cls_weight
        * cls_loss(student_cls, teacher_cls, cls_centre, s),
        'loss_patch': s.patch_weight
        * patch_loss(student_patch, teacher_patch, masks, patch_centre, s),
        'cls_centre': moved_centre(cls_centre, teacher_cls, s.centre_momentum),
        'patch_centre': moved_centre(
            patch_centre, teacher_patch, s.patch_centre_momentum
        ),
    }
