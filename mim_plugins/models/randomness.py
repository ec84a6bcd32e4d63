"""Random numbers that belong to an iteration, not to a process."""

import random

import numpy as np
import torch
from mmengine.dist import get_dist_info
from torch import Tensor, nn


class IterationRandomness:
    """Random numbers of the samples of one training iteration.

    They depend on the seed, the iteration and the place of the sample in the
    batch of all processes together, and on nothing else: N processes with
    B / N images each draw what one draws with B, and a resumed run draws what
    the uninterrupted one does.  Process r of n has every n-th sample, from
    the r-th on, as ``PassSampler`` deals them out.

    It must be started for each iteration; a model that is used without a
    Runner does not, and draws from torch's global generator instead.
    """

    def __init__(self):
        self._key: tuple[int, int] | None = None
        self._process = (0, 1)
        self._calls = 0

    @property
    def started(self) -> bool:
        """Whether an iteration is known."""
        return self._key is not None

    def start(
        self,
        seed: int,
        iteration: int,
        rank: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Begin an iteration.

        Args:
            seed (int): of the run, not negative, equal in all processes.
            iteration (int): counted from 0.
            rank, processes (int, optional): which part of the batch this is;
                by default that of this process.
        """
        self._key = seed, iteration
        self._calls = 0
        here = get_dist_info()
        self._process = (
            here[0] if rank is None else rank,
            here[1] if processes is None else processes,
        )

    def uniform(self, batch: int, *shape: int) -> Tensor:
        """Uniform numbers of each of this process's samples.

        All processes must make the same calls in an iteration, in the same
        order; each call gives other numbers.

        Args:
            batch (int): B, samples of this process.
            *shape (int): numbers of one sample.

        Returns:
            Tensor: ``(B, *shape)``, float32 in [0, 1), on the CPU.
        """
        sequence = np.random.SeedSequence((*self._key, self._calls))
        self._calls += 1
        rank, processes = self._process
        # sample by sample: what one gets does not depend on those after it
        numbers = np.random.Generator(np.random.PCG64(sequence)).random(
            (batch * processes, *shape), dtype=np.float32
        )
        return torch.from_numpy(numbers[rank::processes])


def start_iteration(
    model: nn.Module,
    seed: int,
    iteration: int,
    rank: int | None = None,
    processes: int | None = None,
) -> None:
    """Make everything random in an iteration a function of its number.

    Models with a method ``start_iteration`` are told seed and iteration.
    For what else draws (dropout, parts of other libraries) the global
    generators of torch, numpy and python are seeded, in each process
    otherwise.

    Args:
        model (nn.Module): without a data-parallel wrapper.
        seed, iteration, rank, processes: see
            :meth:`IterationRandomness.start`.
    """
    if hasattr(model, 'start_iteration'):
        model.start_iteration(seed, iteration, rank, processes)
    rank = get_dist_info()[0] if rank is None else rank
    sequence = np.random.SeedSequence((seed, iteration, rank))
    words = [int(word) for word in sequence.generate_state(3, np.uint64)]
    torch.manual_seed(words[0])
    np.random.seed(words[1] % 2**32)
    random.seed(words[2])


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy from the CPU without waiting for the device."""
    if device.type == 'cuda':
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)
