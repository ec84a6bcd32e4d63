"""Running statistics that a step can be taken back from."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class RunningStatistics:
    """Those of all batch norms of a network, which move in every forward.

    They move before it is known whether the loss is finite.  So they are
    copied before the first forward of an optimizer step, and put back after
    it where a flag is set.

    Args:
        network (nn.Module): complete; modules added later are not seen.
    """

    def __init__(self, network: nn.Module):
        self._norms = [
            m for m in network.modules() if isinstance(m, _NormBase)
        ]
        self._copies: list[Tensor] | None = None

    def _buffers(self) -> list[Tensor]:
        return [b for norm in self._norms for b in norm.buffers(recurse=False)]

    @torch.no_grad()
    def keep(self) -> None:
        """Copy them, unless a copy of this optimizer step is there."""
        if self._copies is None:
            self._copies = [buffer.clone() for buffer in self._buffers()]

    @torch.no_grad()
    def settle(self, halted: Tensor | None) -> None:
        """End an optimizer step: put the copies back if ``halted`` is set."""
        copies, self._copies = self._copies, None
        if halted is None or copies is None:
            return
        for buffer, old in zip(self._buffers(), copies, strict=True):
            buffer.copy_(torch.where(halted, old, buffer))
