"""Refuses a checkpoint whose weights do not fit the model."""

from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS

from ...checkpoints.fit import check_weights
from .attributes import unwrapped


@HOOKS.register_module()
class CheckpointFitHook(Hook):
    """Compares a checkpoint with the model before its weights are loaded.

    mmengine warns of weights of another shape, leaves those of the model as
    they were initialised, and goes on. Here a run that is resumed needs all
    weights in their shapes. ``load_from`` may bring a part of them, but none
    of another shape (position embeddings are interpolated).

    Raises:
        CheckpointMismatch: names the file and what differs.
    """

    # After hooks that change what was read.
    priority = 'VERY_LOW'

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        """Check what was read."""
        check_weights(
            unwrapped(runner.model),
            checkpoint,
            runner._load_from or 'The checkpoint',
            partial=not runner._resume,
        )
