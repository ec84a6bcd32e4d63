"""Schedules: arrays of values, one per optimizer step or one per epoch.

A schedule knows nothing of the runner.  ``values`` turns the length of a run
(:class:`Progress`) into a float64 array that is looked up by index, so that a
resumed run reads the same numbers as an uninterrupted one.
"""

import numpy as np

from .progress import Progress

SCHEDULES: dict[str, type] = {}


def register_schedule(cls: type) -> type:
    """Make a schedule class known to configs by its name."""
    if cls.__name__ in SCHEDULES:
        raise KeyError(f'a schedule named {cls.__name__} exists already')
    SCHEDULES[cls.__name__] = cls
    return cls


def build_schedule(cfg: dict):
    """Build a schedule from ``dict(type='CosineSchedule', base=..., ...)``.

    Raises:
        KeyError: if ``type`` is missing or names no known schedule.
        TypeError: if the schedule does not take one of the arguments.
    """
    args = dict(cfg)
    kind = args.pop('type', None)
    cls = SCHEDULES.get(kind) if isinstance(kind, str) else kind
    if cls is None:
        known = ', '.join(sorted(SCHEDULES))
        raise KeyError(f'unknown schedule type {kind!r}; known are: {known}')
    try:
        return cls(**args)
    except TypeError as error:
        raise TypeError(f'{cls.__name__}: {error}') from error


def _join(ramp: np.ndarray, rest: np.ndarray, total: int) -> np.ndarray:
    """Ramp and rest one after the other, cut where the run ends."""
    return np.concatenate([ramp, rest])[:total]


def cosine_schedule(
    base: float,
    final: float,
    total: int,
    warmup: int = 0,
    start: float = 0.0,
) -> np.ndarray:
    """Linear warm-up from ``start`` to ``base``, then half a cosine.

    Args:
        base: value at the end of the warm-up.
        final: value that the cosine tends to.  It is not reached: the last
            value is one step short of it.
        total: number of values.
        warmup: number of values of the ramp; both its ends are included, so
            ``base`` occurs twice.  If it exceeds ``total``, the ramp is cut.
        start: first value of the ramp.

    Returns:
        ndarray: ``(total,)``, float64.

    Source: iBOT, official code's scheduler (DINO's).
    """
    ramp = np.linspace(start, base, warmup)
    count = max(total - warmup, 0)
    phase = np.pi * np.arange(count) / max(count, 1)
    cosine = final + 0.5 * (base - final) * (1 + np.cos(phase))
    return _join(ramp, cosine, total)


def linear_schedule(
    base: float,
    final: float,
    total: int,
    warmup: int = 0,
    start: float = 0.0,
) -> np.ndarray:
    """Linear warm-up, then a straight line that ends short of ``final``.

    Arguments and result as in :func:`cosine_schedule`.
    """
    ramp = np.linspace(start, base, warmup)
    count = max(total - warmup, 0)
    line = base + (final - base) * np.arange(count) / max(count, 1)
    return _join(ramp, line, total)


def step_schedule(
    base: float,
    gamma: float,
    milestones: list[int],
    total: int,
    warmup: int = 0,
    start: float = 0.0,
) -> np.ndarray:
    """Linear warm-up, then ``base * gamma ** milestones passed``.

    Milestones are counted from the start of the run, warm-up included.
    Result as in :func:`cosine_schedule`.
    """
    ramp = np.linspace(start, base, warmup)
    steps = np.arange(warmup, max(total, warmup))
    passed = np.searchsorted(sorted(milestones), steps, side='right')
    return _join(ramp, base * float(gamma) ** passed, total)


def temperature_schedule(
    warm: float,
    final: float,
    warmup_epochs: int,
    epochs: int,
    delay: int = 0,
) -> np.ndarray:
    """Teacher temperature per epoch.

    Args:
        warm: value of the first epoch (and of the epochs before the ramp).
        final: value after the ramp.
        warmup_epochs: epochs of the linear ramp, both ends included; with
            one epoch its value is ``warm``, with none there is no ramp.
        epochs: epochs of the run; a ramp that is longer is cut.
        delay: epochs at ``warm`` before the ramp; iBOT's patch temperature
            is delayed when masked image modelling starts late.

    Returns:
        ndarray: ``(epochs,)``, float64.

    Source: iBOT, official code's loss.
    """
    ramp = np.linspace(warm, final, warmup_epochs)
    ramp = np.concatenate([np.full(delay, float(warm)), ramp])
    rest = np.full(max(epochs - len(ramp), 0), float(final))
    return _join(ramp, rest, epochs)


class _Schedule:
    """Common part of the schedules that move with every optimizer step.

    Args:
        base: value at the end of the warm-up.
        warmup_epochs: length of the warm-up in epochs (may be fractional).
        warmup_iters: the same in iterations; exclusive with the former.
        start: value at which the warm-up starts.
        scale_batch: if given, ``base`` is multiplied by
            ``global batch / scale_batch`` (linear scaling of learning rates;
            256 in most papers).  The other values are left alone.
    """

    per_epoch = False

    def __init__(
        self,
        base: float,
        warmup_epochs: float = 0,
        warmup_iters: int | None = None,
        start: float = 0.0,
        scale_batch: int | None = None,
    ):
        if warmup_epochs and warmup_iters is not None:
            raise ValueError(
                f'{type(self).__name__}: give warmup_epochs or warmup_iters, '
                'not both'
            )
        if warmup_epochs < 0 or (warmup_iters or 0) < 0:
            raise ValueError(
                f'{type(self).__name__}: a warm-up cannot be negative'
            )
        if scale_batch is not None and scale_batch <= 0:
            raise ValueError(
                f'{type(self).__name__}: scale_batch must be positive, got '
                f'{scale_batch}'
            )
        self.base = float(base)
        self.warmup_epochs = warmup_epochs
        self.warmup_iters = warmup_iters
        self.start = float(start)
        self.scale_batch = scale_batch

    def scaled_base(self, global_batch: int | None) -> float:
        """``base`` after linear scaling with the global batch."""
        if self.scale_batch is None:
            return self.base
        if global_batch is None:
            raise ValueError(
                f'{type(self).__name__}: scale_batch={self.scale_batch} needs '
                'a train_dataloader with a batch size'
            )
        return self.base * global_batch / self.scale_batch

    def warmup_steps(self, progress: Progress) -> int:
        """Optimizer steps of the warm-up."""
        if self.warmup_iters is not None:
            return progress.steps_of_iters(self.warmup_iters)
        return progress.steps_of_epochs(self.warmup_epochs)

    def values(
        self, progress: Progress, global_batch: int | None = None
    ) -> np.ndarray:
        """Values of the whole run, one per optimizer step."""
        raise NotImplementedError


@register_schedule
class ConstantSchedule(_Schedule):
    """``base`` throughout, after an optional warm-up."""

    def values(self, progress, global_batch=None):
        base = self.scaled_base(global_batch)
        warmup = self.warmup_steps(progress)
        return linear_schedule(base, base, progress.steps, warmup, self.start)


@register_schedule
class CosineSchedule(_Schedule):
    """See :func:`cosine_schedule`; arguments as in the base class."""

    def __init__(self, base: float, final: float, **kwargs):
        super().__init__(base, **kwargs)
        self.final = float(final)

    def values(self, progress, global_batch=None):
        return cosine_schedule(
            self.scaled_base(global_batch),
            self.final,
            progress.steps,
            self.warmup_steps(progress),
            self.start,
        )


@register_schedule
class LinearSchedule(_Schedule):
    """See :func:`linear_schedule`; arguments as in the base class."""

    def __init__(self, base: float, final: float, **kwargs):
        super().__init__(base, **kwargs)
        self.final = float(final)

    def values(self, progress, global_batch=None):
        return linear_schedule(
            self.scaled_base(global_batch),
            self.final,
            progress.steps,
            self.warmup_steps(progress),
            self.start,
        )


@register_schedule
class StepSchedule(_Schedule):
    """See :func:`step_schedule`; ``milestones`` are epochs."""

    def __init__(
        self,
        base: float,
        milestones: list[float],
        gamma: float = 0.1,
        **kwargs,
    ):
        super().__init__(base, **kwargs)
        self.milestones = list(milestones)
        self.gamma = float(gamma)

    def values(self, progress, global_batch=None):
        return step_schedule(
            self.scaled_base(global_batch),
            self.gamma,
            [progress.steps_of_epochs(m) for m in self.milestones],
            progress.steps,
            self.warmup_steps(progress),
            self.start,
        )


@register_schedule
class TemperatureSchedule:
    """See :func:`temperature_schedule`; one value per epoch."""

    per_epoch = True
    scale_batch = None

    def __init__(
        self,
        warm: float,
        final: float,
        warmup_epochs: int = 0,
        delay: int = 0,
    ):
        if warmup_epochs < 0 or delay < 0:
            raise ValueError(
                'TemperatureSchedule: warmup_epochs and delay cannot be '
                f'negative, got {warmup_epochs} and {delay}'
            )
        self.warm = float(warm)
        self.final = float(final)
        self.warmup_epochs = int(warmup_epochs)
        self.delay = int(delay)

    def values(
        self, progress: Progress, global_batch: int | None = None
    ) -> np.ndarray:
        """Values of the whole run, one per epoch."""
        return temperature_schedule(
            self.warm,
            self.final,
            self.warmup_epochs,
            progress.epochs,
            self.delay,
        )
