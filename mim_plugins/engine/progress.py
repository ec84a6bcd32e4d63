"""Where a run stands: iterations, optimizer steps, epochs, global batch."""

import math
from dataclasses import dataclass
from typing import Any

from mmengine.dist import get_world_size


@dataclass(frozen=True)
class Progress:
    """Lengths of a run, and what an iteration is in steps and epochs.

    An *iteration* is one forward and backward pass, an *optimizer step* the
    update after ``accumulation`` of them.  Windows of accumulation are
    counted from iteration 0; the last one may be shorter.  Everything that
    belongs to a step (schedules, the epoch it counts for) is that of the
    first iteration of its window, hence the same for all of them.

    Args:
        total_iters: iterations of the run.
        iters_per_epoch: iterations of an epoch; ``None`` if unknown.
        accumulation: iterations per optimizer step.
    """

    total_iters: int
    iters_per_epoch: int | None
    accumulation: int = 1

    @classmethod
    def of(cls, runner, iters_per_epoch: int | None = None) -> 'Progress':
        """Lengths of an mmengine runner whose train loop is built."""
        if iters_per_epoch is None:
            try:
                iters_per_epoch = len(runner.train_dataloader)
            except TypeError:
                iters_per_epoch = None
        return cls(
            total_iters=runner.max_iters,
            iters_per_epoch=iters_per_epoch,
            accumulation=accumulation_of(runner.optim_wrapper),
        )

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return math.ceil(self.total_iters / self.accumulation)

    @property
    def epochs(self) -> int:
        """Epochs of the run, a started one included."""
        return math.ceil(self.total_iters / self._epoch_length())

    def step(self, iteration: int) -> int:
        """Index of the optimizer step that an iteration belongs to."""
        return min(iteration // self.accumulation, self.steps - 1)

    def epoch(self, iteration: int) -> int:
        """Index of the epoch that an iteration's optimizer step counts for."""
        first = self.step(iteration) * self.accumulation
        return first // self._epoch_length()

    def steps_of_iters(self, iters: float) -> int:
        """A duration in iterations, as optimizer steps."""
        return round(iters / self.accumulation)

    def steps_of_epochs(self, epochs: float) -> int:
        """A duration in epochs, as optimizer steps."""
        if epochs == 0:
            return 0
        return self.steps_of_iters(epochs * self._epoch_length())

    def _epoch_length(self) -> int:
        if not self.iters_per_epoch:
            raise ValueError(
                'the length of an epoch is unknown, because the train '
                'dataloader has no length (or is empty): give iters_per_epoch '
                'to the hook, or use durations in iterations'
            )
        return self.iters_per_epoch


def accumulation_of(optim_wrapper: Any) -> int:
    """Iterations per optimizer step of a wrapper or of its config."""
    if isinstance(optim_wrapper, dict):
        return optim_wrapper.get('accumulative_counts', 1)
    return getattr(optim_wrapper, '_accumulative_counts', 1)


def batch_size_of(dataloader: Any) -> int | None:
    """Images per iteration and process of a dataloader; None if unknown."""
    size = getattr(dataloader, 'batch_size', None)
    if size is None:
        sampler = getattr(dataloader, 'batch_sampler', None)
        size = getattr(sampler, 'batch_size', None)
    return size


def effective_lr(
    base: float,
    scale_batch: int | None,
    batch_size: int,
    processes: int = 1,
    accumulation: int = 1,
) -> float:
    """Learning rate after linear scaling with the global batch.

    Args:
        base: learning rate for a batch of ``scale_batch``.
        scale_batch: reference batch (256 in iBOT); ``None`` for no scaling.
        batch_size: images per iteration and process.
        processes: number of processes.
        accumulation: iterations per optimizer step.
    """
    if scale_batch is None:
        return base
    return base * batch_size * processes * accumulation / scale_batch


def describe_run(
    progress: Progress,
    batch_size: int | None,
    lr: float | None = None,
    scale_batch: int | None = None,
    processes: int | None = None,
) -> str:
    """One line on learning rate, batch, accumulation and length of a run.

    Args:
        progress: lengths of the run.
        batch_size: images per iteration and process.
        lr: base learning rate of the config.
        scale_batch: reference batch of ``lr``; ``None`` for no scaling.
        processes: number of processes; the default is that of this job.
    """
    processes = get_world_size() if processes is None else processes
    parts = []
    if batch_size is not None:
        batch = batch_size * processes * progress.accumulation
        if lr is not None:
            effective = effective_lr(
                lr, scale_batch, batch_size, processes, progress.accumulation
            )
            rule = f' x {batch}/{scale_batch}' if scale_batch else ''
            parts.append(
                f'base lr {lr:g}, effective lr {effective:.4g} '
                f'(base{rule or ", not scaled"})'
            )
        parts.append(
            f'global batch {batch} = {batch_size} images x {processes} '
            f'processes x accumulation {progress.accumulation}'
        )
    length = f'{progress.steps} optimizer steps'
    if progress.accumulation > 1:
        length += f' ({progress.total_iters} iterations)'
    if progress.iters_per_epoch:
        length += (
            f' in {progress.epochs} epochs of {progress.iters_per_epoch} '
            'iterations'
        )
    parts.append(length)
    return '; '.join(parts)
