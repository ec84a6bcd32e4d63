"""Masks over the patches of a view."""

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from mmcv.transforms import BaseTransform
from mmpretrain.registry import TRANSFORMS

from .checks import as_size

BLOCK_TRIES = 10


class PatchMask(BaseTransform):
    """Base of the mask generators: ratios, groups, delayed start.

    Args:
        patch_size (int | tuple): patch size of the backbone, an int or (h, w).
        ratio (float | list): share of the patches to mask. Of a list one
            entry is picked, each with equal probability.
        variance (float | list): the ratio is drawn from
            [ratio - variance, ratio + variance]; a list goes with the list of
            ratios entry by entry.
        groups (tuple): groups of views that get masks.
        per (str): 'crop': every crop draws its own ratio (official code);
            'image': one ratio for all crops of an image (the paper's text).
            The masks themselves always differ.
        start_epoch (int): before this epoch (counted from 0) all masks are
            empty.

    Raises:
        ValueError: a ratio that leaves [0, 1], lists of unequal length.

    Source: iBOT, section 3 and official code: ratios [0, 0.3] with variances
    [0, 0.2].
    """

    draws_from_rng = True

    def __init__(
        self,
        patch_size: int | Sequence[int],
        ratio: float | Sequence[float] = 0.3,
        variance: float | Sequence[float] = 0.0,
        groups: Sequence[str] = ('global',),
        per: str = 'crop',
        start_epoch: int = 0,
    ):
        self.patch_size = as_size(patch_size, 'patch_size')
        self.ratios = _read_ratios(ratio, variance)
        self.groups = (groups,) if isinstance(groups, str) else tuple(groups)
        if per not in ('crop', 'image'):
            raise ValueError(f"per must be 'crop' or 'image', got {per!r}.")
        self.per = per
        self.start_epoch = start_epoch

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Patches along (h, w) of a view of size (h, w) pixels.

        Raises:
            ValueError: if the size is not a multiple of the patch size.
        """
        if size[0] % self.patch_size[0] or size[1] % self.patch_size[1]:
            raise ValueError(
                f'a view of {size[0]}x{size[1]} px cannot be cut into patches '
                f'of {self.patch_size[0]}x{self.patch_size[1]} px: set the '
                "view's size to a multiple of mask.patch_size, which must be "
                "the backbone's patch size."
            )
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]

    def draw_ratio(self, rng: np.random.Generator) -> float:
        """Ratio of one crop (or of one image, see ``per``)."""
        low, high = self.ratios[int(rng.random() * len(self.ratios))]
        return low + (high - low) * rng.random()

    def generate(
        self,
        height: int,
        width: int,
        rng: np.random.Generator,
        epoch: int = 0,
        ratio: float | None = None,
    ) -> np.ndarray:
        """One mask.

        Args:
            height, width (int): number of patches.
            rng: where all random numbers come from.
            epoch (int): compared with ``start_epoch``.
            ratio (float, optional): in place of a drawn one.

        Returns:
            ndarray: bool (height, width), True where masked.
        """
        if epoch < self.start_epoch:
            return np.zeros((height, width), dtype=bool)
        if ratio is None:
            ratio = self.draw_ratio(rng)
        return self.fill(height, width, ratio, rng)

    def fill(
        self, height: int, width: int, ratio: float, rng: np.random.Generator
    ) -> np.ndarray:
        """A mask of at most ``ratio * height * width`` patches."""
        raise NotImplementedError

    def transform(self, results: dict) -> dict:
        """Add ``masks``, a bool array (num, h, w) for each masked group.

        Reads ``views`` (group -> list of (C, H, W)), ``rng``, ``epoch``.
        """
        rng, epoch = results['rng'], results['epoch']
        ratio = self.draw_ratio(rng) if self.per == 'image' else None
        results['masks'] = {
            group: np.stack(
                [
                    self.generate(*self.grid(v.shape[1:]), rng, epoch, ratio)
                    for v in results['views'][group]
                ]
            )
            for group in self.groups
            if group in results['views']
        }
        return results

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(patch_size={self.patch_size}, '
            f'ratios={self.ratios}, groups={self.groups}, per={self.per!r}, '
            f'start_epoch={self.start_epoch})'
        )


@TRANSFORMS.register_module()
class RandomMask(PatchMask):
    """``floor(ratio * h * w)`` patches, uniformly at random."""

    def fill(self, height, width, ratio, rng):
        mask = np.zeros(height * width, dtype=bool)
        count = int(ratio * height * width)
        mask[rng.permutation(height * width)[:count]] = True
        return mask.reshape(height, width)


@TRANSFORMS.register_module()
class BlockMask(PatchMask):
    """Rectangles until ``ratio * h * w`` patches are masked, never more.

    A rectangle has an area drawn from [min_patches, what is still missing]
    (near the end the lower bound may exceed the upper one), a log-uniform
    aspect ratio, is smaller than the grid in both directions, and is taken if
    it adds at least one patch and not more than what is missing. After ten
    rectangles in a row that do not fit, the mask stays as it is; so the
    coverage is usually a little below the ratio.

    Args:
        patch_size, ratio, variance, groups, per, start_epoch: see PatchMask.
        min_aspect (float): aspect ratios lie in [min_aspect, 1 / min_aspect].
        min_patches (int, optional): least area of a rectangle; by default
            ``(min(h, w) // 3) ** 2``.

    Source: BEiT's blockwise masking as in iBOT's official code.
    """

    def __init__(
        self,
        patch_size: int | Sequence[int],
        ratio: float | Sequence[float] = 0.3,
        variance: float | Sequence[float] = 0.0,
        groups: Sequence[str] = ('global',),
        per: str = 'crop',
        start_epoch: int = 0,
        min_aspect: float = 0.3,
        min_patches: int | None = None,
    ):
        super().__init__(patch_size, ratio, variance, groups, per, start_epoch)
        if not 0 < min_aspect <= 1:
            raise ValueError(
                f'min_aspect must be in (0, 1], got {min_aspect!r}.'
            )
        self.min_aspect = min_aspect
        self.min_patches = min_patches

    def fill(self, height, width, ratio, rng):
        mask = np.zeros((height, width), dtype=bool)
        least = self.min_patches
        if least is None:
            least = (min(height, width) // 3) ** 2
        missing = ratio * height * width
        while missing > 0:
            added = self._add_block(mask, least, missing, rng)
            if not added:
                break
            missing -= added
        return mask

    def _add_block(self, mask, least, missing, rng) -> int:
        """Mask one more rectangle; the number of patches that it added."""
        height, width = mask.shape
        log_aspect = -math.log(self.min_aspect)
        for u in rng.random((BLOCK_TRIES, 4)).tolist():
            area = least + (missing - least) * u[0]
            aspect = math.exp(log_aspect * (2 * u[1] - 1))
            h = round(math.sqrt(area * aspect))
            w = round(math.sqrt(area / aspect))
            if h >= height or w >= width:
                continue
            top = int(u[2] * (height - h + 1))
            left = int(u[3] * (width - w + 1))
            block = mask[top : top + h, left : left + w]
            added = h * w - int(np.count_nonzero(block))
            if 0 < added <= missing:
                block[...] = True
                return added
        return 0


def _read_ratios(ratio, variance) -> list[tuple[float, float]]:
    """Ranges of the ratio, one for each entry of the list."""
    ratios = [ratio] if isinstance(ratio, Real) else list(ratio)
    if isinstance(variance, Real):
        variances = [variance] * len(ratios)
    else:
        variances = list(variance)
    if not ratios or len(variances) != len(ratios):
        raise ValueError(
            f'{len(ratios)} mask ratios {ratio} but {len(variances)} '
            f'variances {variance}: give one variance for each ratio.'
        )
    ranges = [(r - v, r + v) for r, v in zip(ratios, variances)]
    for low, high in ranges:
        if not -1e-12 <= low <= high <= 1 + 1e-12:
            raise ValueError(
                f'mask ratio {ratio} with variance {variance} gives ratios in '
                f'[{low}, {high}]; they must stay within [0, 1].'
            )
    return [(max(low, 0.0), min(high, 1.0)) for low, high in ranges]
