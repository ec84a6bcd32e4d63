"""Hooks of pre-training."""

from .checkpoint_fit_hook import CheckpointFitHook
from .checkpoint_hook import AtomicCheckpointHook
from .compile_hook import CompileHook
from .freeze_last_layer_hook import FreezeLastLayerHook
from .iteration_seed_hook import IterationSeedHook
from .non_finite_hook import NonFiniteHook, NonFiniteLoss
from .optimizer_step_hook import OptimizerStepHook
from .preemption_hook import PreemptionHook
from .runtime_info_hook import DeferredRuntimeInfoHook
from .schedule_hook import ScheduleHook
from .start_weights_hook import StartWeightsHook
from .unreadable_hook import TooManyUnreadable, UnreadableImagesHook

__all__ = [
    'AtomicCheckpointHook',
    'CheckpointFitHook',
    'CompileHook',
    'DeferredRuntimeInfoHook',
    'FreezeLastLayerHook',
    'IterationSeedHook',
    'NonFiniteHook',
    'NonFiniteLoss',
    'OptimizerStepHook',
    'PreemptionHook',
    'ScheduleHook',
    'StartWeightsHook',
    'TooManyUnreadable',
    'UnreadableImagesHook',
]
