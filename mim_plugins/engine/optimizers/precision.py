"""Arithmetic of a run: float32, bfloat16, float16 with loss scaling."""

import warnings

import torch
from mmengine.dist import broadcast_object_list, get_world_size
from torch import Tensor
from torch.optim import Optimizer

from ..probe import supports_fast_bf16

PRECISIONS = ('fp32', 'bf16', 'fp16', 'auto')
DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}


def autocast_works(device_type: str, dtype: torch.dtype) -> bool:
    """Whether autocast takes this type on this device.

    Some versions of torch only warn, and go on in float32.
    """
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            with torch.autocast(device_type, dtype=dtype):
                x = torch.ones(2, 2, device=device_type)
                return (x @ x).dtype == dtype
        except (RuntimeError, ValueError):
            return False


def resolve_precision(precision: str, device_type: str) -> str:
    """The precision that a config asks for, on a device.

    Args:
        precision: ``'fp32'``, ``'bf16'``, ``'fp16'`` or ``'auto'``.  The
            last is bf16 where that is fast, else fp16 on CUDA, else fp32; the
            first process decides for all.
        device_type: ``'cpu'``, ``'cuda'`` ...

    Returns:
        str: one of ``'fp32'``, ``'bf16'``, ``'fp16'``.

    Raises:
        ValueError: if the name is unknown or the device cannot do it.
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f'unknown precision {precision!r}; use one of '
            f'{", ".join(PRECISIONS)}'
        )
    if precision == 'auto':
        return _automatic(device_type)
    if precision != 'fp32' and not autocast_works(
        device_type, DTYPES[precision]
    ):
        raise ValueError(
            f"precision={precision!r} does not work on device '{device_type}' "
            f'with torch {torch.__version__}; use bf16, fp32 or auto'
        )
    return precision


class LossScaler(torch.amp.GradScaler):
    """GradScaler whose answers stay on the device."""

    def overflowed(self, optimizer: Optimizer) -> Tensor:
        """Whether the gradients are not finite; after ``unscale_``.

        Returns:
            Tensor: bool, 0-dim.
        """
        return sum(self._found_inf_per_device(optimizer).values()) > 0

    @torch.no_grad()
    def update_unless(self, halted: Tensor) -> None:
        """``update()``, of which a set flag (bool, 0-dim) leaves no trace."""
        numbers = (self._scale, self._growth_tracker)
        before = [number.clone() for number in numbers]
        self.update()
        for number, old in zip(numbers, before, strict=True):
            number.copy_(torch.where(halted, old, number))


def _automatic(device_type: str) -> str:
    choice = 'fp32'
    if supports_fast_bf16(device_type):
        choice = 'bf16'
    elif device_type == 'cuda':
        choice = 'fp16'
    if get_world_size() > 1:
        box = [choice]
        broadcast_object_list(box)
        choice = box[0]
    return choice
