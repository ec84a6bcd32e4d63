"""Schedules, hooks and optimizers of pre-training."""

from .hooks import (
    CompileHook,
    FreezeLastLayerHook,
    OptimizerStepHook,
    ScheduleHook,
)
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
    'CompileHook',
    'ConstantSchedule',
    'CosineSchedule',
    'FreezeLastLayerHook',
    'LayerDecayConstructor',
    'LinearSchedule',
    'OptimizerStepHook',
    'PretrainOptimConstructor',
    'PretrainOptimWrapper',
    'Progress',
    'ScheduleHook',
    'StepSchedule',
    'TemperatureSchedule',
    'cosine_schedule',
    'describe_run',
    'effective_lr',
    'linear_schedule',
    'register_schedule',
    'step_schedule',
    'supports_fast_bf16',
    'temperature_schedule',
]
