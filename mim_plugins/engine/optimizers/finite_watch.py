"""Remembers on the device whether everything was finite so far."""

import torch
from mmengine.dist import all_reduce
from torch import Tensor

NEVER = torch.iinfo(torch.int64).max


class FiniteWatch:
    """A flag on the device that is set once by NaN or infinity, and stays.

    Nothing here but :meth:`first` copies to the host.

    Args:
        device: where the numbers are that are looked at.

    Attributes:
        halted (Tensor): bool, 0-dim; whether a process had seen a number
            that is not finite at the last :meth:`agree`.
    """

    def __init__(self, device: torch.device):
        self._first = torch.full((), NEVER, device=device)
        self.halted = torch.zeros((), dtype=torch.bool, device=device)

    @torch.no_grad()
    def look(self, value: Tensor, iteration: int) -> None:
        """Note the iteration if this process's number is not finite.

        Args:
            value: one number, of any shape.
            iteration: the number of the iteration, rising.
        """
        finite = value.detach().reshape(()).abs() < torch.inf
        noted = self._first.clamp(max=iteration)
        self._first = torch.where(finite, self._first, noted)

    @torch.no_grad()
    def agree(self) -> Tensor:
        """All processes learn of each other's; all must call it.

        Returns:
            Tensor: :attr:`halted`, the same in all processes.
        """
        all_reduce(self._first, 'min')
        self.halted = self._first < NEVER
        return self.halted

    def first(self) -> int | None:
        """The first iteration with such a number, in any process; or None.

        All processes must call it.  It waits for the device.
        """
        self.agree()
        first = int(self._first)
        return None if first == NEVER else first
