"""Gradient clipping, without a copy to the host."""

import torch
from torch import Tensor


def gradient_norms(grads: list[Tensor]) -> Tensor:
    """L2 norm of each gradient.

    Args:
        grads: n tensors of any shape, on one device.

    Returns:
        Tensor: ``(n,)``; float32 or wider.
    """
    norms = torch._foreach_norm(grads)
    return torch.stack(
        [n.float() if n.element_size() < 4 else n for n in norms]
    )


def clip_per_tensor_(
    grads: list[Tensor], norms: Tensor, max_norm: float, eps: float = 1e-6
) -> None:
    """Scale each gradient by ``max_norm / (norm + eps)`` if that is < 1.

    Args:
        grads: n tensors, changed in place.
        norms: ``(n,)``, of :func:`gradient_norms`.
        max_norm: largest norm of one tensor.
        eps: added to the norm.

    Source: iBOT, official code (parameter by parameter, no global norm).
    """
    scales = (max_norm / (norms + eps)).clamp(max=1.0)
    for grad, scale in zip(grads, scales.unbind(), strict=True):
        grad.mul_(scale)


def clip_global_(
    grads: list[Tensor], norms: Tensor, max_norm: float, eps: float = 1e-6
) -> None:
    """Scale all gradients by ``max_norm / (global norm + eps)`` if < 1.

    Arguments as in :func:`clip_per_tensor_`; the rule of
    ``torch.nn.utils.clip_grad_norm_``.
    """
    total = torch.linalg.vector_norm(norms)
    scale = (max_norm / (total + eps)).clamp(max=1.0)
    torch._foreach_mul_(grads, scale)


CLIP_MODES = {'tensor': clip_per_tensor_, 'global': clip_global_}
