"""Does an optimizer have a fused kernel for these parameters?"""

import functools

import torch


def supports_fused(optimizer: type, groups: list[dict]) -> bool:
    """Try the fused kernel on one number per device and type.

    Args:
        optimizer: class of the optimizer, with an argument ``fused``.
        groups: parameter groups.
    """
    kinds = {(p.device, p.dtype) for g in groups for p in g['params']}
    return all(_try(optimizer, device, dtype) for device, dtype in kinds)


@functools.cache
def _try(optimizer, device: torch.device, dtype: torch.dtype) -> bool:
    parameter = torch.ones(1, device=device, dtype=dtype, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    try:
        optimizer([parameter], lr=0.1, fused=True).step()
    except (RuntimeError, ValueError, TypeError):
        return False
    return bool((parameter.detach() < 1).all())
