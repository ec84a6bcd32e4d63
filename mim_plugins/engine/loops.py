"""Train loops that go on from any iteration as if nothing had happened."""

import contextlib
import itertools
import logging
from collections.abc import Iterator

from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from mmpretrain.registry import LOOPS
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from .errors import ConfigError
from .progress import accumulation_of, batch_size_of


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
        _find_position(self)
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
                    f'{saved["batch"]} (all processes together); {_text(now)} '
                    'does not continue there. Use the same data set and a '
                    'global batch that divides the images seen, or resume '
                    'from a checkpoint at the end of an epoch.'
                )
        self._iter = self._epoch * now['iters'] + first
        _say(
            f'The checkpoint was made with {_text(saved)}, this run has '
            f'{_text(now)}: it goes on at epoch {self._epoch + 1} after '
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

    def run(self):
        """Train; see the class."""
        with _leaving(self.runner):
            return self._train()

    def _train(self):
        _find_position(self)
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
        _say(
            f'The checkpoint was made with {_text(saved)}, this run has '
            f'{_text(now)}: it goes on at iteration {self._iter} as if all '
            'before had been such ones, so some images come twice or not at '
            'all in this pass.',
            logging.WARNING,
        )


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
        _say(
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


def _find_position(loop) -> None:
    """Check and mend where a resumed run goes on; note what batches it has."""
    runner = loop.runner
    now = _describe(loop.dataloader)
    saved = runner.message_hub.get_info('batches')
    if loop._iter and saved:
        if saved['seed'] != now['seed'] and now['seed'] is not None:
            _say(f'Samples go on with seed {saved["seed"]} of the checkpoint.')
            loop.dataloader.sampler.seed = now['seed'] = saved['seed']
        if saved != now:
            loop._convert(saved, now)
    runner.message_hub.update_info('batches', now)
    if isinstance(runner.model, DistributedDataParallel):
        settle_buckets(runner.model)
    _go_back_to_last_step(loop)
    runner.optim_wrapper.initialize_count_status(
        runner.model, loop._iter, loop._max_iters
    )


def settle_buckets(model: DistributedDataParallel) -> None:
    """Let DDP arrange its buckets of gradients before the first iteration.

    It does so once, after the first backward pass, and where a gradient lies
    decides in which order three and more processes add it up. Without this
    the first iteration after resuming would round otherwise. A backward pass
    of zeros settles it.
    """

    def zero() -> Tensor:
        terms = (p.flatten()[0] * 0 for p in model.parameters())
        return sum(term for term in terms if term.requires_grad)

    model.module.forward = zero
    try:
        model().backward()
    finally:
        del model.module.forward  # and the class's is back
    model.zero_grad(set_to_none=True)


def _go_back_to_last_step(loop) -> None:
    """The gradients of a step that was not finished are in no checkpoint."""
    unfinished = loop._iter % accumulation_of(loop.runner.optim_wrapper)
    if not unfinished or loop._iter >= loop._max_iters:
        return
    loop._iter -= unfinished
    if isinstance(loop, EpochBasedTrainLoop):
        loop._epoch = loop._iter // len(loop.dataloader)
    _say(
        f'The checkpoint lies between two optimizer steps: the run goes back '
        f'{unfinished} iteration(s), to the start of the step.'
    )


def _describe(dataloader: DataLoader) -> dict:
    """What the position in a pass depends on."""
    return {
        'images': len(dataloader.dataset),
        'batch': (batch_size_of(dataloader) or 0) * get_world_size(),
        'iters': len(dataloader),
        'seed': getattr(dataloader.sampler, 'seed', None),
    }


def _text(batches: dict) -> str:
    return (
        f'{batches["images"]} images in {batches["iters"]} batches of '
        f'{batches["batch"]}'
    )


def _say(text: str, level: int = logging.INFO) -> None:
    print_log(text, logger='current', level=level)
