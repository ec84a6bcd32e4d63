"""Hooks of pre-training."""

from .compile_hook import CompileHook
from .freeze_last_layer_hook import FreezeLastLayerHook
from .optimizer_step_hook import OptimizerStepHook
from .schedule_hook import ScheduleHook

__all__ = [
    'CompileHook',
    'FreezeLastLayerHook',
    'OptimizerStepHook',
    'ScheduleHook',
]
