"""Tells the model that the optimizer has made a step."""

from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS

from .attributes import unwrapped


@HOOKS.register_module()
class OptimizerStepHook(Hook):
    """Calls ``model.after_optimizer_step(halted)`` once per optimizer step.

    There the model updates its teacher and centres, unless the flag says that
    a loss was not finite (None without :class:`PretrainOptimWrapper`).  With
    gradient accumulation this is once per window, the last, shorter window of
    a run included.
    """

    # Before hooks that log, evaluate or save the model.
    priority = 'HIGH'

    def before_train(self, runner) -> None:
        """Check that the model wants to know."""
        model = unwrapped(runner.model)
        if not hasattr(model, 'after_optimizer_step'):
            raise TypeError(
                f'OptimizerStepHook: {type(model).__name__} has no method '
                'after_optimizer_step; remove the hook from default_hooks'
            )

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        """Call the model if this iteration ended with a step."""
        if made_step(runner.optim_wrapper):
            watch = getattr(runner.optim_wrapper, 'watch', None)
            halted = None if watch is None else watch.halted
            unwrapped(runner.model).after_optimizer_step(halted)


def made_step(optim_wrapper) -> bool:
    """Whether the last iteration ended with an optimizer step.

    Asked after the iteration: mmengine's wrappers have counted it by then.
    """
    if hasattr(optim_wrapper, 'stepped'):
        return optim_wrapper.stepped
    return optim_wrapper.should_update()
