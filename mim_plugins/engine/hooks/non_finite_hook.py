"""Ends a run whose loss is not finite, and keeps what explains it."""

from typing import Any, NamedTuple

from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS
from torch import Tensor

from ...datasets.samplers import SampleKey
from ..replay import Incident
from .attributes import unwrapped
from .moments import logs_after, saves_after
from .runtime_info_hook import to_host


class NonFiniteLoss(RuntimeError):
    """A loss or a gradient became NaN or infinite; the run has ended."""


class _Iteration(NamedTuple):
    """What the host knows of an iteration without asking the device."""

    number: int  # from 1, as in the log
    count: int  # of the optimizer wrapper
    samples: list[tuple[str | None, SampleKey | None]]
    outputs: dict[str, Any]


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Ends the run when a loss was not finite, and saves what led to it.

    Needs :class:`PretrainOptimWrapper`, whose flag keeps parameters,
    optimizer, teacher and centres as they were before that iteration.  The
    flag is read by all processes together, at logging iterations, at the end
    of an epoch, and before a validation or a checkpoint, so that no checkpoint
    is written after it and the last one stays.  Then
    ``<work_dir>/non_finite/iter_<n>/`` gets

    - ``rank_<r>.json`` of each process: the parts of its loss, the files and
      :class:`SampleKey` of its batch in iteration n (counted from 1, as in
      the log);
    - ``batch_rank<r>.pth``: the batch, made again from those keys;
    - ``state.pth``: model, optimizer, seed and schedules,

    from which ``tools/train.py CONFIG --replay FOLDER`` computes the losses
    again.

    Args:
        interval (int, optional): iterations of an epoch between checks; by
            default those after which the LoggerHook writes a line.

    Raises:
        NonFiniteLoss: in all processes.
    """

    # After the LoggerHook (BELOW_NORMAL), whose line shows the loss; before
    # checkpoints (VERY_LOW).
    priority = 'LOW'

    def __init__(self, interval: int | None = None):
        if interval is not None and interval < 1:
            raise ValueError(
                'NonFiniteHook: interval must be at least 1 iteration, got '
                f'{interval}.'
            )
        self.interval = interval
        self.watch = None
        self._since: list[_Iteration] = []

    def before_train(self, runner) -> None:
        """Find the flag."""
        self.watch = getattr(runner.optim_wrapper, 'watch', None)
        self._since = []
        if self.watch is None:
            runner.logger.warning(
                f'{type(runner.optim_wrapper).__name__} does not watch for '
                'losses that are not finite: none will stop this run. Use '
                "optim_wrapper.type='PretrainOptimWrapper', or set "
                'default_hooks.non_finite=None.'
            )

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        """Remember the iteration, and check if it is time."""
        if self.watch is None:
            return
        self._since.append(
            _Iteration(
                runner.iter + 1,
                runner.optim_wrapper.inner_count,
                samples_of(data_batch),
                _detached(outputs),
            )
        )
        if self._due(runner, batch_idx) or saves_after(runner):
            self.check(runner)

    def _due(self, runner, batch_idx: int) -> bool:
        if self.interval is None:
            return logs_after(runner, batch_idx)
        return self.every_n_inner_iters(batch_idx, self.interval)

    def after_train_epoch(self, runner) -> None:
        """Check before the checkpoint of the epoch."""
        self.check(runner)

    def before_val(self, runner) -> None:
        """Check before the best checkpoint."""
        self.check(runner)

    def before_checkpoint(self, runner) -> None:
        """Check before a checkpoint out of turn; of AtomicCheckpointHook."""
        self.check(runner)

    def check(self, runner) -> None:
        """End the run if anything was not finite; all processes must call it.

        Raises:
            NonFiniteLoss: what happened, where it is kept, what to do.
        """
        if self.watch is None:
            return
        first = self.watch.first()
        iterations, self._since = self._since, []
        if first is None:
            return
        model = unwrapped(runner.model)
        if hasattr(model, 'after_optimizer_step'):
            # a micro-batch's statistics, of a step that has not come
            model.after_optimizer_step(self.watch.halted)
        bad = next(i for i in iterations if i.count >= first)
        losses = to_host(list(bad.outputs.values()))
        incident = Incident(
            work_dir=runner.work_dir,
            iteration=bad.number,
            samples=bad.samples,
            losses=dict(zip(bad.outputs, losses, strict=True)),
        )
        problem = None
        try:
            incident.save(runner)
        except Exception as error:  # the others wait, whatever went wrong
            problem = f'{type(error).__name__}: {error}'
        # all have written before the launcher sees the first one leave
        reports = all_gather_object((incident.bad, problem))
        message = describe(incident, reports)
        runner.logger.error(message)
        raise NonFiniteLoss(message)


def describe(
    incident: Incident, reports: list[tuple[dict, str | None]]
) -> str:
    """What happened, where it is kept, what to do.

    Args:
        incident: of any process.
        reports: of each process the parts of its loss that are not finite,
            and what went wrong when it wrote its files.
    """
    parts = [
        f'{", ".join(f"{key} = {value}" for key, value in bad.items())} '
        f'(rank {rank})'
        for rank, (bad, _) in enumerate(reports)
        if bad
    ]
    what = f'the loss was not finite: {"; ".join(parts)}'
    if not parts:
        what = 'the loss was finite, but the norm of its gradient was not'
    problems = ''.join(
        f' Rank {rank} could not save everything ({problem}).'
        for rank, (_, problem) in enumerate(reports)
        if problem
    )
    return (
        f'In iteration {incident.iteration} {what}. The training has stopped '
        'with the parameters from before it, and wrote no checkpoint since. '
        f'{incident.folder} has the files, the batch and the state of that '
        f'iteration.{problems} Look at the files that rank_*.json names, '
        'repeat the step with tools/train.py CONFIG --replay '
        f'{incident.folder}, then lower the learning rate (schedules.lr), '
        'clip the gradients (optim_wrapper.clip) or train in another '
        'precision (--amp bf16 or fp32), and go on with --resume.'
    )


def samples_of(data_batch) -> list[tuple[str | None, SampleKey | None]]:
    """File and key of each image of a batch, None where unknown."""
    samples = ()
    if isinstance(data_batch, dict):
        samples = data_batch.get('data_samples') or ()
    found = []
    for sample in samples:
        key = getattr(sample, 'sample_key', None)
        path = getattr(sample, 'img_path', None)
        found.append((path, None if key is None else SampleKey(*key)))
    return found


def _detached(outputs: dict | None) -> dict[str, Any]:
    return {
        key: value.detach() if isinstance(value, Tensor) else value
        for key, value in (outputs or {}).items()
    }
