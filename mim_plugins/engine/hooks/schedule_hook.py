"""Writes the values of all schedules before each iteration."""

from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS

from ..progress import Progress, batch_size_of, describe_run
from ..schedules import build_schedule
from .attributes import resolve, unwrapped, write

OPTIMIZER_NAMES = ('lr', 'weight_decay')


@HOOKS.register_module()
class ScheduleHook(Hook):
    """Learning rate, weight decay, momentum, temperatures: one hook for all.

    Values depend on the index of the optimizer step alone (iteration divided
    by the accumulation; see :class:`Progress`), so a resumed run continues
    with the same ones.  They are written before the iteration and logged
    under the schedules' names.

    Args:
        schedules: name -> config of a schedule, or None to leave one out (so
            that a child config can drop what its parent has).  ``lr`` and
            ``weight_decay`` are those of the optimizer; each group gets the
            value times its ``lr_mult`` or ``decay_mult``.  Any other one
            needs ``target``, a dotted path below the model, e.g.
            ``dict(type='CosineSchedule', target='teacher.momentum',
            base=0.996, final=1.0)``.
        iters_per_epoch: length of an epoch where the train dataloader has
            none.
    """

    # Before RuntimeInfoHook (VERY_HIGH), which logs the learning rate.
    priority = 'HIGHEST'

    def __init__(self, schedules: dict, iters_per_epoch: int | None = None):
        self.iters_per_epoch = iters_per_epoch
        self.schedules, self.targets = {}, {}
        for name, cfg in schedules.items():
            if cfg is None:
                continue
            cfg = dict(cfg)
            target = cfg.pop('target', None)
            if (target is None) != (name in OPTIMIZER_NAMES):
                raise ValueError(
                    f"ScheduleHook: '{name}' "
                    + (
                        'needs a target, a dotted path below the model'
                        if target is None
                        else 'is written to the optimizer and takes no target'
                    )
                )
            self.schedules[name] = build_schedule(cfg)
            self.targets[name] = target
        self.values = {}

    def prepare(self, runner) -> None:
        """Compute all values for the length of this run."""
        self.progress = Progress.of(runner, self.iters_per_epoch)
        batch = batch_size_of(runner.train_dataloader)
        if batch is not None:
            batch *= get_world_size() * self.progress.accumulation
        self.values = {
            name: schedule.values(self.progress, batch)
            for name, schedule in self.schedules.items()
        }

    def describe(self, runner) -> str:
        """One line on the learning rate, the batch and the run's length."""
        progress = Progress.of(runner, self.iters_per_epoch)
        lr = self.schedules.get('lr')
        return describe_run(
            progress,
            batch_size_of(runner.train_dataloader),
            getattr(lr, 'base', None),
            getattr(lr, 'scale_batch', None),
        )

    def before_train(self, runner) -> None:
        """Check the targets, compute the values, log a summary."""
        self._check_rivals(runner)
        model = unwrapped(runner.model)
        for name, target in self.targets.items():
            if target is not None:
                try:
                    resolve(model, target)
                except AttributeError as error:
                    raise AttributeError(
                        f"ScheduleHook: the target of '{name}' is missing. "
                        f'{error}. Correct the target, or set '
                        f'schedules.{name}=None'
                    ) from None
        self.prepare(runner)
        runner.logger.info(f'Training: {self.describe(runner)}.')

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        """Write and log the values of this optimizer step."""
        for name, value in self.at(runner.iter).items():
            target = self.targets[name]
            if target is not None:
                write(*resolve(unwrapped(runner.model), target), value)
            else:
                write_groups(runner.optim_wrapper, name, value)
            if name != 'lr':  # logged by RuntimeInfoHook
                runner.message_hub.update_scalar(f'train/{name}', value)

    def at(self, iteration: int) -> dict[str, float]:
        """Values by name at an iteration (after :meth:`prepare`)."""
        step = self.progress.step(iteration)
        result = {}
        for name, values in self.values.items():
            per_epoch = self.schedules[name].per_epoch
            index = self.progress.epoch(iteration) if per_epoch else step
            result[name] = float(values[index])
        return result

    def _check_rivals(self, runner) -> None:
        """Nothing else may write the learning rate."""
        if 'lr' not in self.schedules:
            return
        if runner.param_schedulers:
            raise ValueError(
                'both ScheduleHook (schedules.lr) and param_scheduler set the '
                'learning rate; remove param_scheduler from the config or set '
                'schedules.lr=None'
            )
        if (runner.auto_scale_lr or {}).get('enable'):
            raise ValueError(
                'auto_scale_lr has no effect next to ScheduleHook; remove it '
                'and give schedules.lr.scale_batch'
            )


def write_groups(optim_wrapper, name: str, value: float) -> None:
    """Write ``lr`` or ``weight_decay`` into all groups of an optimizer."""
    multiplier = 'lr_mult' if name == 'lr' else 'decay_mult'
    for group in optim_wrapper.param_groups:
        group[name] = value * group.get(multiplier, 1.0)
