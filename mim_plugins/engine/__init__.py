"""Schedules, hooks and optimizers of pre-training."""

from .hooks import (
    AtomicCheckpointHook,
    CheckpointFitHook,
    CompileHook,
    DeferredRuntimeInfoHook,
    FreezeLastLayerHook,
    IterationSeedHook,
    NonFiniteHook,
    NonFiniteLoss,
    OptimizerStepHook,
    PreemptionHook,
    ScheduleHook,
    UnreadableImagesHook,
)
from .loops import PretrainEpochLoop, PretrainIterLoop
from .optimizers import (
    LayerDecayConstructor,
    PretrainOptimConstructor,
    PretrainOptimWrapper,
)
from .probe import supports_fast_bf16
from .progress import Progress, describe_run, effective_lr
from .schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    StepSchedule,
    TemperatureSchedule,
    cosine_schedule,
    linear_schedule,
    register_schedule,
    step_schedule,
    temperature_schedule,
)

__all__ = [
    'AtomicCheckpointHook',
    'CheckpointFitHook',
    'CompileHook',
    'ConstantSchedule',
    'CosineSchedule',
    'DeferredRuntimeInfoHook',
    'FreezeLastLayerHook',
    'IterationSeedHook',
    'LayerDecayConstructor',
    'LinearSchedule',
    'NonFiniteHook',
    'NonFiniteLoss',
    'OptimizerStepHook',
    'PreemptionHook',
    'PretrainEpochLoop',
    'PretrainIterLoop',
    'PretrainOptimConstructor',
    'PretrainOptimWrapper',
    'Progress',
    'ScheduleHook',
    'StepSchedule',
    'TemperatureSchedule',
    'UnreadableImagesHook',
    'cosine_schedule',
    'describe_run',
    'effective_lr',
    'linear_schedule',
    'register_schedule',
    'step_schedule',
    'supports_fast_bf16',
    'temperature_schedule',
]
