"""Where in its data a resumed run stands."""

import logging

from mmengine.dist import get_world_size
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from .progress import accumulation_of, batch_size_of


def find_position(loop) -> None:
    """Check and mend where a resumed run goes on; note what batches it has.

    Args:
        loop: a loop of :mod:`.loops` before its first iteration.  Where the
            batches are others than before, its ``_convert(saved, now)``
            corrects the position or refuses it.
    """
    runner = loop.runner
    now = _describe(loop.dataloader)
    saved = runner.message_hub.get_info('batches')
    if loop._iter and saved:
        if saved['seed'] != now['seed'] and now['seed'] is not None:
            say(f'Samples go on with seed {saved["seed"]} of the checkpoint.')
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
    say(
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


def in_words(batches: dict) -> str:
    """What :func:`find_position` notes, for messages."""
    return (
        f'{batches["images"]} images in {batches["iters"]} batches of '
        f'{batches["batch"]}'
    )


def say(text: str, level: int = logging.INFO) -> None:
    """A line in the log of the run."""
    print_log(text, logger='current', level=level)
