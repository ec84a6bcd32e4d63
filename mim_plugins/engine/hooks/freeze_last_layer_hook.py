"""Keeps the last layer of the heads fixed at the start of training."""

from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS

from ..progress import Progress
from .attributes import unwrapped


@HOOKS.register_module()
class FreezeLastLayerHook(Hook):
    """No updates of some parameters during the first epochs.

    Their gradients are removed before the optimizer's step, so that it does
    not decay them either.  Needs :class:`PretrainOptimWrapper`.

    Args:
        epochs: number of frozen epochs; 0 freezes nothing.
        patterns: parameters whose name contains one of these.
        iters_per_epoch: length of an epoch where the train dataloader has
            none.

    Source: iBOT, official code's default (one epoch).
    """

    priority = 'HIGH'

    def __init__(
        self,
        epochs: int = 1,
        patterns: tuple[str, ...] = ('last_layer',),
        iters_per_epoch: int | None = None,
    ):
        if epochs < 0:
            raise ValueError(
                f'FreezeLastLayerHook: epochs cannot be negative: {epochs}'
            )
        self.epochs = epochs
        if isinstance(patterns, str):
            patterns = (patterns,)
        self.patterns = tuple(patterns)
        self.iters_per_epoch = iters_per_epoch

    def before_train(self, runner) -> None:
        """Check that there is something to freeze, and a way to do it."""
        if not self.epochs:
            return
        if not hasattr(runner.optim_wrapper, 'frozen'):
            raise TypeError(
                'FreezeLastLayerHook needs optim_wrapper.type='
                "'PretrainOptimWrapper', not "
                f'{type(runner.optim_wrapper).__name__}'
            )
        names = [n for n, _ in unwrapped(runner.model).named_parameters()]
        for pattern in self.patterns:
            if not any(pattern in name for name in names):
                raise ValueError(
                    'FreezeLastLayerHook: no parameter has a name with '
                    f"'{pattern}'; correct patterns, or set epochs=0"
                )
        self.progress = Progress.of(runner, self.iters_per_epoch)

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        """Freeze or release, by the epoch of this optimizer step."""
        if self.epochs:
            frozen = self.progress.epoch(runner.iter) < self.epochs
            runner.optim_wrapper.frozen = self.patterns if frozen else ()
