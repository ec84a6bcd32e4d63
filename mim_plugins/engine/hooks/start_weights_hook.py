"""Lets ``load_from`` take checkpoints of other libraries and methods."""

from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS

from ...checkpoints.start import start_from
from ...models.selfsup import MaskedDistiller
from .attributes import unwrapped


@HOOKS.register_module()
class StartWeightsHook(Hook):
    """Fits what ``load_from`` has read to a pre-training model.

    Official iBOT and DINO files give backbones, heads and centres; any other
    backbone goes into student and teacher (see
    :func:`mim_plugins.checkpoints.start.start_from`). The log names what the
    file does not have and what is not used of it. Resumed runs and other
    models are left alone.

    Raises:
        CheckpointError: the file has no backbone, or nothing that fits.
    """

    # before CheckpointFitHook, which compares the shapes
    priority = 'NORMAL'

    def after_load_checkpoint(self, runner, checkpoint: dict) -> None:
        """Put the weights into the names of the model."""
        model = unwrapped(runner.model)
        if runner._resume or not isinstance(model, MaskedDistiller):
            return
        path = runner._load_from or 'The checkpoint'
        start = start_from(checkpoint, model.state_dict(), path)
        checkpoint['state_dict'] = start.state
        runner.logger.info(f'{path}: {start}')
