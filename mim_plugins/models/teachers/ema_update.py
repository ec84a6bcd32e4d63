"""The moving average of a teacher's parameters."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def ema_update(
    teacher_params: Sequence[Tensor],
    student_params: Sequence[Tensor],
    momentum: float,
    halted: Tensor | None = None,
) -> None:
    """``teacher <- momentum * teacher + (1 - momentum) * student``.

    Args:
        teacher_params: n tensors, changed in place.
        student_params: n tensors of the same shapes, in the same order.
        momentum: 1 keeps the teacher, 0 copies the student.
        halted: bool, 0-dim, on the device: where it is set, the teacher
            keeps its values bit by bit (those of the student being finite).

    Raises:
        ValueError: if the numbers of tensors differ.

    Source: iBOT, Section 3.2; official code (parameters only, no buffers).
    """
    if len(teacher_params) != len(student_params):
        raise ValueError(
            f'ema_update: {len(teacher_params)} tensors of the teacher, '
            f'{len(student_params)} of the student'
        )
    if not teacher_params:
        return
    students = [
        s.detach().to(t.dtype) for s, t in zip(student_params, teacher_params)
    ]
    teachers = [t.detach() for t in teacher_params]
    share = 1.0 - float(momentum)
    if halted is None:
        torch._foreach_lerp_(teachers, students, share)
        return
    moves = ~halted
    shares = {
        dtype: moves.to(dtype) * share for dtype in {t.dtype for t in teachers}
    }
    torch._foreach_lerp_(
        teachers, students, [shares[t.dtype] for t in teachers]
    )


def common_names(
    teacher: nn.Module | Mapping[str, Tensor],
    student: nn.Module | Mapping[str, Tensor],
) -> list[str]:
    """Names of the parameters that both networks have, teacher's order.

    What only one of them has (a mask token, a separate last layer) takes no
    part in the moving average.

    Raises:
        ValueError: if a common name has two shapes.
    """
    ours, theirs = _parameters(teacher), _parameters(student)
    names = [name for name in ours if name in theirs]
    for name in names:
        if ours[name].shape != theirs[name].shape:
            raise ValueError(
                f"teacher and student differ in the shape of '{name}': "
                f'{tuple(ours[name].shape)} and {tuple(theirs[name].shape)}'
            )
    return names


def _parameters(network) -> Mapping[str, Tensor]:
    if isinstance(network, nn.Module):
        return dict(network.named_parameters())
    return network
