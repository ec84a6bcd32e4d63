"""Train loops that go on from any iteration as if nothing had happened."""

import contextlib
import itertools
import logging
from collections.abc import Iterator

from mmengine.dataset import InfiniteSampler
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
)
from mmpretrain.registry import LOOPS
from torch.utils.data import DataLoader

from .errors import ConfigError
from .position import find_position, in_words, say


@LOOPS.register_module()
class PretrainEpochLoop(EpochBasedTrainLoop):
    """mmengine's EpochBasedTrainLoop that resumes exactly.

    From a checkpoint in the middle of an epoch it goes on with the next batch
    of that epoch, without reading those before it (with ``PassSampler``).  A
    checkpoint between two optimizer steps of accumulated gradients goes back
    to the first iteration of the step.  The validation that was due right
    after the checkpoint is made.

    Raises:
        ConfigError: the checkpoint is in the middle of an epoch, and the
            batches now are others than those that were used.
    """

    def run(self):
        """Train; see the class."""
        with _leaving(self.runner):
            return self._train()

    def _train(self):
        find_position(self)
        self.runner.call_hook('before_train')
        if self._iter == self._epoch * len(self.dataloader):
            self._validate(missed=True)
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._validate()
        self.runner.call_hook('after_train')
        return self.runner.model

    def run_epoch(self) -> None:
        """One epoch, or what is left of it."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        first = self._iter - self._epoch * len(self.dataloader)
        batches = batches_from(self.dataloader, first)
        for idx, data_batch in enumerate(batches, first):
            self.run_iter(idx, data_batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def _validate(self, missed: bool = False) -> None:
        self._decide_current_val_interval()
        last = self._epoch == self._max_epochs
        _validate(self, self._epoch, last, missed)

    def _convert(self, saved: dict, now: dict) -> None:
        """The position, in batches of another size or another data set."""
        seen = self._iter - self._epoch * saved['iters']
        if seen == saved['iters']:
            first = now['iters']
        else:
            first, rest = divmod(seen * saved['batch'], now['batch'])
            other = saved['images'] != now['images']
            if rest or first > now['iters'] or (seen and other):
                raise ConfigError(
                    f'The checkpoint is in the middle of epoch '
                    f'{self._epoch + 1}, after {seen * saved["batch"]} of '
                    f'{saved["images"]} images in batches of '
                    f'{saved["batch"]} (all processes together); '
                    f'{in_words(now)} do not continue there. Use the same '
                    'data set and a global batch that divides the images '
                    'seen, or resume from a checkpoint at the end of an epoch.'
                )
        self._iter = self._epoch * now['iters'] + first
        say(
            f'The checkpoint was made with {in_words(saved)}, this run has '
            f'{in_words(now)}: it goes on at epoch {self._epoch + 1} after '
            f'iteration {first} of {now["iters"]}, and the losses will differ '
            'from those of an uninterrupted run.',
            logging.WARNING,
        )


@LOOPS.register_module()
class PretrainIterLoop(IterBasedTrainLoop):
    """mmengine's IterBasedTrainLoop that resumes exactly.

    See :class:`PretrainEpochLoop`.  ``PassSampler(infinite=True)`` gives
    passes without a gap; after a finite pass the next one begins.
    """

    def __init__(self, runner, dataloader, *args, **options):
        BaseLoop.__init__(self, runner, dataloader)
        loader = self.dataloader
        super().__init__(runner, _Unread(loader), *args, **options)
        self.dataloader = loader

    def run(self):
        """Train; see the class."""
        with _leaving(self.runner):
            return self._train()

    def _train(self):
        find_position(self)
        self.runner.call_hook('before_train')
        self.runner.call_hook('before_train_epoch')
        self.dataloader_iterator = self._batches()
        self._validate(missed=True)
        while self._iter < self._max_iters and not self.stop_training:
            self.runner.model.train()
            self.run_iter(next(self.dataloader_iterator))
            self._validate()
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model

    def _batches(self) -> Iterator[dict]:
        sampler = self.dataloader.sampler
        if _is_infinite(sampler):
            yield from batches_from(self.dataloader, self._iter)
            return
        passes, first = divmod(self._iter, len(self.dataloader))
        for epoch in itertools.count(passes):
            if hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(epoch)
            yield from batches_from(self.dataloader, first)
            first = 0

    def _validate(self, missed: bool = False) -> None:
        self._decide_current_val_interval()
        last = self._iter == self._max_iters
        _validate(self, self._iter, last, missed)

    def _convert(self, saved: dict, now: dict) -> None:
        say(
            f'The checkpoint was made with {in_words(saved)}, this run has '
            f'{in_words(now)}: it goes on at iteration {self._iter} as if all '
            'before had been such ones, so some images come twice or not at '
            'all in this pass.',
            logging.WARNING,
        )


class _Unread:
    """Stands for a loader where mmengine 0.10.7 would begin to read it."""

    def __init__(self, loader: DataLoader):
        self.dataset = loader.dataset

    def __iter__(self) -> Iterator:
        return iter(())


@contextlib.contextmanager
def _leaving(runner) -> Iterator[None]:
    """Call ``leave_train`` of the hooks that have it, also after errors."""
    try:
        yield
    finally:
        runner.call_hook('leave_train')


def batches_from(dataloader: DataLoader, first: int) -> Iterator[dict]:
    """Batches of a loader, starting with number ``first``.

    Samplers with ``start_after`` (``PassSampler``) or ``skip`` start there.
    With others the batches before are read and thrown away, which is said.
    """
    sampler = dataloader.sampler
    start = getattr(sampler, 'start_after', getattr(sampler, 'skip', None))
    if start is not None and dataloader.batch_size:
        start(first * dataloader.batch_size)
        return iter(dataloader)
    if first:
        say(
            f'{type(sampler).__name__} cannot start in the middle: {first} '
            'batches that were used before are read and thrown away. '
            "sampler=dict(type='PassSampler') goes on at once.",
            logging.WARNING,
        )
    return itertools.islice(dataloader, first, None)


def _is_infinite(sampler) -> bool:
    return isinstance(sampler, InfiniteSampler) or bool(
        getattr(sampler, 'infinite', False)
    )


def _validate(loop, done: int, last: bool, missed: bool) -> None:
    """Run the validation, if it is due after ``done`` epochs (iterations).

    Args:
        missed: it was due at a checkpoint that has just been resumed from,
            and is skipped if the checkpoint was saved after it.
    """
    runner = loop.runner
    if runner.val_loop is None or done < loop.val_begin or not done:
        return
    if not last and done % loop.val_interval:
        return
    if missed and runner.message_hub.get_info('validated_iter') == loop.iter:
        return
    runner.val_loop.run()
