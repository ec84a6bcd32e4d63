"""Puts the losses into the log without waiting for them in every iteration."""

from collections import defaultdict
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.hooks import RuntimeInfoHook
from mmpretrain.registry import HOOKS
from torch import Tensor

from .moments import logs_after, saves_after


@HOOKS.register_module()
class DeferredRuntimeInfoHook(RuntimeInfoHook):
    """mmengine's RuntimeInfoHook, without a synchronisation per iteration.

    mmengine copies every entry of the model's log to the host after each
    iteration, which waits for the device.  Here they stay on the device until
    somebody reads them: a line of the LoggerHook, a validation, a checkpoint
    or the end of an epoch.  Then they all go to the message hub in one copy,
    in their order, so that windows, means and checkpoints are the same as
    mmengine's.  In between, ``message_hub.get_scalar('train/loss')`` lacks
    the latest iterations; a hook of your own that reads it in each of them
    wants ``runtime_info=dict(type='RuntimeInfoHook')``.

    Losses are averaged over the processes then: the log shows those of the
    whole batch, where mmengine shows the first process's.
    """

    def __init__(self):
        self._waiting: list[tuple[str, Any]] = []

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        """Note what the model logs; write it if it is read now."""
        for key, value in (outputs or {}).items():
            if isinstance(value, Tensor):
                value = value.detach()
            self._waiting.append((f'train/{key}', value))
        if logs_after(runner, batch_idx) or saves_after(runner):
            self.write(runner)

    def after_train_epoch(self, runner) -> None:
        """Write what is left of the epoch."""
        self.write(runner)

    def before_val(self, runner) -> None:
        """Write, since the best checkpoint may follow."""
        self.write(runner)
        super().before_val(runner)

    def before_checkpoint(self, runner) -> None:
        """Write, for a checkpoint out of turn; of AtomicCheckpointHook."""
        self.write(runner)

    def write(self, runner) -> None:
        """Bring the message hub up to date."""
        waiting, self._waiting = self._waiting, []
        values = [value for _, value in waiting]
        losses = [
            i
            for i, (key, value) in enumerate(waiting)
            if 'loss' in key and isinstance(value, Tensor)
        ]
        for i, mean in zip(losses, process_means([values[i] for i in losses])):
            values[i] = mean
        values = to_host(values)
        for (key, _), value in zip(waiting, values, strict=True):
            runner.message_hub.update_scalar(key, value)


def process_means(numbers: list[Tensor]) -> list[Tensor]:
    """Means over the processes, in one exchange; all must call it.

    Args:
        numbers: one element each, as many in every process.
    """
    if not numbers or get_world_size() == 1:
        return numbers
    together = torch.stack([number.reshape(()) for number in numbers])
    all_reduce(together, 'mean')
    return list(together.unbind())


def to_host(values: list) -> list:
    """Numbers of tensors with one element each, in one copy per type.

    Args:
        values: tensors; anything else is handed through.

    Raises:
        ValueError: a tensor has more or less than one element.
    """
    groups = defaultdict(list)
    for i, value in enumerate(values):
        if not isinstance(value, Tensor):
            continue
        if value.numel() != 1:
            raise ValueError(
                'an entry of the log must be one number, not a tensor of '
                f'shape {tuple(value.shape)}'
            )
        groups[value.device, value.dtype].append(i)
    values = list(values)
    for places in groups.values():
        together = torch.stack([values[i].reshape(()) for i in places])
        for i, number in zip(places, together.tolist(), strict=True):
            values[i] = number
    return values
