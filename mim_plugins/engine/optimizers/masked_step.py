"""Optimizer steps that the device can call off."""

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer


class MaskedStep:
    """Steps of an optimizer that a flag on the device can call off.

    Where the flag is set, parameters and the optimizer's tensors keep their
    values bit by bit.  Fused kernels look at the flag themselves (the
    ``found_inf`` of GradScaler), without waiting.

    For other optimizers the values are copied before the step, and put back
    where the flag is set.  That costs memory and time, and the host waits for
    the flag in a parameter's first step, which creates its state, and where
    state lies on the host (the step count of an AdamW that is not fused).
    Plain numbers (a count in a parameter group) move on all the same.

    Args:
        optimizer: optimizer of torch.
    """

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer
        self._stepped: set[Tensor] = set()

    def __call__(self, skip: Tensor, **kwargs) -> None:
        """Make a step unless ``skip`` is set.

        Args:
            skip: bool, 0-dim, on the device of the parameters.
            **kwargs: arguments of ``optimizer.step``.
        """
        if not self._looks_itself():
            self._step_and_undo(skip, **kwargs)
            return
        self._start_momentum()
        self.optimizer.grad_scale = None
        self.optimizer.found_inf = skip.float()
        try:
            self.optimizer.step(**kwargs)
        finally:
            del self.optimizer.grad_scale, self.optimizer.found_inf

    def _looks_itself(self) -> bool:
        # The first step of SGD leaves out the dampening, also if it is called
        # off.
        dampened = any(
            group.get('momentum') and group.get('dampening')
            for group in self.optimizer.param_groups
        )
        fused = getattr(self.optimizer, '_step_supports_amp_scaling', False)
        return fused and not dampened

    def _start_momentum(self) -> None:
        """Let SGD's momentum start at zero, which gives the same first step.

        torch leaves it at random memory when a fused first step is called
        off, and fails where some parameters (so far frozen) have none yet.
        """
        if not isinstance(self.optimizer, SGD):
            return
        for group in self.optimizer.param_groups:
            for p in group['params'] if group['momentum'] else ():
                if p.grad is None:
                    continue
                state = self.optimizer.state[p]
                if state.get('momentum_buffer') is None:
                    state['momentum_buffer'] = torch.zeros_like(p)

    def _step_and_undo(self, skip: Tensor, **kwargs) -> None:
        groups = self.optimizer.param_groups
        moving = [p for g in groups for p in g['params'] if p.grad is not None]
        if not self._stepped.issuperset(moving):
            # what a new state starts from, only the optimizer knows
            if not bool(skip):
                self.optimizer.step(**kwargs)
                self._stepped.update(moving)
            return
        tensors = [p.detach() for p in moving]
        for p in moving:
            state = self.optimizer.state.get(p, {}).values()
            tensors += [value for value in state if isinstance(value, Tensor)]
        before = [tensor.clone() for tensor in tensors]
        self.optimizer.step(**kwargs)
        flags = {d: skip.to(d) for d in {t.device for t in tensors}}
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                flag = flags[tensor.device]
                tensor.copy_(torch.where(flag, old, tensor))
