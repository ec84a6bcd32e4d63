"""Sampling of whole passes over a data set."""

import itertools
from collections.abc import Iterator, Sized
from typing import NamedTuple

import numpy as np
import torch
from mmengine.dist import get_dist_info, sync_random_seed
from mmpretrain.registry import DATA_SAMPLERS
from torch.utils.data import Sampler


class SampleKey(NamedTuple):
    """Which image, and everything that its random numbers depend on.

    It travels to the workers in place of a bare index. So the augmentation of
    a sample depends neither on the worker nor on the process that makes it,
    and persistent workers know the epoch.

    Attributes:
        index: position in the data set.
        seed: seed of the run.
        epoch: pass over the data, counted from 0.
        occurrence: how often the index came before in this pass.
    """

    index: int
    seed: int = 0
    epoch: int = 0
    occurrence: int = 0


class TooFewImages(ValueError):
    """A data set has no images, or fewer than there are processes."""


@DATA_SAMPLERS.register_module()
class PassSampler(Sampler):
    """Passes over the data set as :class:`SampleKey`, split over processes.

    Process r of n takes every n-th key of the pass, from the r-th on: batch b
    of all processes together is batch b of a single process with an n times
    larger batch.

    Args:
        dataset (Sized): the data set.
        shuffle (bool): a new permutation in every pass.
        seed (int, optional): seed of permutations and augmentations. None:
            one random seed agreed on by all processes.
        infinite (bool): False: one pass each time, whose tail that does not
            divide by the number of processes is dropped, never padded.
            True: passes follow each other without end and without a gap (for
            ``IterBasedTrainLoop``).

    Raises:
        TooFewImages: no images, or fewer than processes.
        ValueError: a negative seed.
    """

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int | None = None,
        infinite: bool = False,
    ):
        self.rank, self.world_size = get_dist_info()
        self.dataset = dataset
        self.size = len(dataset)
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else int(seed)
        self.infinite = infinite
        self.epoch = 0
        self._start = 0
        if self.size == 0:
            raise TooFewImages(
                f'PassSampler: the data set {type(dataset).__name__} holds no '
                'images; check its data_root, data_prefix and ann_file.'
            )
        if self.size < self.world_size and not infinite:
            raise TooFewImages(
                f'PassSampler: {self.size} images cannot be shared by '
                f'{self.world_size} processes; use at most {self.size}.'
            )
        if self.seed < 0:
            raise ValueError(
                f'PassSampler: the seed must not be negative, got {self.seed}.'
            )
        if infinite:
            # mmengine's loop resumes through `skip` where there is one, and
            # knows nothing of passes and the batches that they drop.
            self.skip = self.start_after

    def order(self, epoch: int) -> torch.Tensor:
        """Indices of a whole pass, int64 (len(dataset),)."""
        if not self.shuffle:
            return torch.arange(self.size)
        words = np.random.SeedSequence((self.seed, epoch)).generate_state(2)
        generator = torch.Generator()
        generator.manual_seed(int(words[0]) | int(words[1] >> 1) << 32)
        return torch.randperm(self.size, generator=generator)

    def __iter__(self) -> Iterator[SampleKey]:
        if self.infinite:
            return self._endless()
        first = self._start * self.world_size + self.rank
        return self._keys(self.epoch, first, len(self) * self.world_size)

    def _keys(self, epoch: int, first: int, stop: int) -> Iterator[SampleKey]:
        own = self.order(epoch)[first : stop : self.world_size]
        for index in own.tolist():
            yield SampleKey(index, self.seed, epoch)

    def _endless(self) -> Iterator[SampleKey]:
        position = self._start * self.world_size + self.rank
        skipped, first = divmod(position, self.size)
        for epoch in itertools.count(self.epoch + skipped):
            yield from self._keys(epoch, first, self.size)
            first = (first - self.size) % self.world_size

    def start_after(self, num_samples: int) -> None:
        """Let iterations start after the first samples; nothing is read.

        Args:
            num_samples (int): samples of this process, counted from the start
                of the pass (of the run, if infinite); 0 for the start.
        """
        if num_samples < 0:
            raise ValueError(
                f'num_samples must not be negative, got {num_samples}.'
            )
        self._start = num_samples

    def __len__(self) -> int:
        """Number of keys of one pass in this process."""
        return self.size // self.world_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass that the next iteration starts with."""
        self.epoch = epoch
