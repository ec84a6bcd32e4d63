"""Random numbers that are a function of the iteration."""

from mmengine.dist import broadcast_object_list
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS

from ...models.randomness import start_iteration
from .attributes import unwrapped


@HOOKS.register_module()
class IterationSeedHook(Hook):
    """Seeds what is random in a training iteration by its number.

    Drop path depends on the seed of the run, the iteration and the image:
    any number of processes drops the same.  The global generators of torch,
    numpy and python are seeded from (seed, iteration, rank), so that dropout
    and parts of other libraries draw the same after resuming, and whatever an
    evaluation has drawn in between.  No state needs to be saved.

    The seed is that of ``randomness=dict(seed=...)``, or the one that
    mmengine drew for lack of it; resuming takes the one of the checkpoint.
    """

    # before hooks that draw themselves
    priority = 'VERY_HIGH'

    def before_train(self, runner) -> None:
        """Agree on a seed, which ``diff_rank_seed`` makes differ by rank."""
        seeds = [runner.seed]
        broadcast_object_list(seeds)
        self.seed = seeds[0]

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        """Seed; the device is not waited for."""
        start_iteration(unwrapped(runner.model), self.seed, runner.iter)
