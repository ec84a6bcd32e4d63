"""From an image file to the views and masks of one sample."""

import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import cv2
import numpy as np
import torch
from mmpretrain.registry import DATASETS, TRANSFORMS
from mmpretrain.structures import DataSample
from torch.utils.data import Dataset, get_worker_info

from .global_rng import seeded_global_rng
from .samplers import SampleKey
from .source import report_left_out
from .transforms.checks import check_keys
from .transforms.loading import UnreadableImage
from .transforms.pixels import as_pixels
from .transforms.views import ViewAugmentation, make_views

VIEW_KEYS = (
    'group',
    'num',
    'size',
    'scale',
    'ratio',
    'flip',
    'jitter',
    'gray',
    'blur',
    'solarize',
    'interpolation',
)


@DATASETS.register_module()
class ViewDataset(Dataset):
    """Random views of the images of another data set, and their masks.

    All random numbers of a sample come from its :class:`SampleKey` (seed,
    epoch, index, occurrence), so they are the same for any number of workers
    and processes. Samples are drawn with ``PassSampler``; a plain index
    stands for seed 0 and epoch 0.

    An image that cannot be read is replaced by another one, label included,
    which is chosen by the same key. The sample says so, and
    ``UnreadableImagesHook`` counts, lists and limits such files.

    Args:
        source (dict | Dataset): the data set that knows the files, labelled
            or not; of it only ``get_data_info`` is used.
        views (dict): name -> settings of :class:`ViewAugmentation` and
            ``group`` ('global', 'local', ...; default: the name) and ``num``
            (default 1). The views of a group have one size. ``num=0`` or None
            in place of the settings switches a view off.
        mask (dict, optional): mask generator, such as ``BlockMask``.
        load (dict): transform that reads ``img_path`` and gives ``img``, and
            raises :class:`UnreadableImage` where it cannot.
        replacements (int): how many other images are tried in the place of
            an unreadable one. 0 is strict: the first unreadable file is an
            error.

    Raises:
        TypeError: unknown key in a view, with the closest known one.
        ValueError: no view, views of unequal size in a group, a size that is
            not a multiple of the mask's patch size, negative replacements.
    """

    def __init__(
        self,
        source: Mapping | Any,
        views: Mapping[str, Mapping | None],
        mask: Mapping | None = None,
        load: Mapping | None = None,
        replacements: int = 10,
    ):
        if replacements < 0:
            raise ValueError(
                f'replacements must be at least 0, got {replacements!r}.'
            )
        self.replacements = replacements
        self.groups = _build_views(views)
        self.load = TRANSFORMS.build(dict(load or {'type': 'LoadImage'}))
        self.mask = None if mask is None else TRANSFORMS.build(dict(mask))
        self._check_mask(views)
        if isinstance(source, Mapping):
            source = DATASETS.build({'pipeline': [], **source})
        self.source = source
        self._reported = False
        parts = [self.load] if self.mask is None else [self.load, self.mask]
        self._guard_global_rng = not all(
            getattr(part, 'draws_from_rng', False) for part in parts
        )
        self._plain_indices = 0

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """(h, w) in pixels of the views of each group."""
        return {name: views[0].size for name, views in self.groups.items()}

    @property
    def num_views(self) -> dict[str, int]:
        """Number of views of each group."""
        return {name: len(views) for name, views in self.groups.items()}

    @property
    def metainfo(self) -> dict:
        """Meta information of the source, such as ``classes``."""
        return getattr(self.source, 'metainfo', {})

    def full_init(self) -> None:
        """Let the source read its list of files, and log what it left out.

        The Runner calls it before training.
        """
        if hasattr(self.source, 'full_init'):
            self.source.full_init()
        if not self._reported:
            self._reported = True
            report_left_out(self.source)

    def get_data_info(self, index: int) -> dict:
        """Record of an image in the source."""
        return self.source.get_data_info(index)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: SampleKey | int) -> dict:
        """One sample.

        Returns:
            dict: ``data_samples``: a DataSample with ``gt_label`` (where the
            source has one), ``img_path``, ``sample_idx``, ``sample_key`` (a
            tuple, of which the sample can be made again) and, if they are
            those of a replacement, ``unreadable``: a list of (path, reason)
            of the files that could not be read; ``inputs``: a dict of

            - ``views``: group -> list of uint8 tensors (C, h, w);
            - ``boxes``: group -> list of float32 tensors (5,): left, top,
              width, height in source pixels, 1 if flipped;
            - ``image_size``: float32 tensor (2,), height and width;
            - ``masks`` (with a mask generator): group -> bool array
              (num, rows, columns) of patches, True where masked.

        Raises:
            UnreadableImage: neither the image nor a replacement is readable.
        """
        if not isinstance(key, SampleKey):
            key = SampleKey(operator.index(key))
            self._count_plain_index()
        sequence = np.random.SeedSequence(
            (key.seed, key.epoch, key.index, key.occurrence)
        )
        rng = np.random.Generator(np.random.PCG64(sequence))
        if not self._guard_global_rng:
            return self._sample(key, rng)
        with seeded_global_rng(sequence):
            return self._sample(key, rng)

    def _sample(self, key: SampleKey, rng: np.random.Generator) -> dict:
        if get_worker_info() is not None:
            # as torch does with its own threads in a worker
            cv2.setNumThreads(0)
        record, image, unreadable = self._read(key)
        label = record.get('gt_label')
        meta = {name: record[name] for name in ('img_path', 'sample_idx')}
        meta['sample_key'] = tuple(key)
        if unreadable:
            meta['unreadable'] = unreadable
        image = as_pixels(image)
        views, boxes = {}, {}
        for group, augmentations in self.groups.items():
            pairs = make_views(image, augmentations, rng)
            views[group] = [view for view, _ in pairs]
            boxes[group] = [torch.from_numpy(box) for _, box in pairs]
        inputs = {
            'views': views,
            'boxes': boxes,
            'image_size': torch.tensor(image.shape[:2], dtype=torch.float32),
        }
        if self.mask is not None:
            drawn = {'views': views, 'rng': rng, 'epoch': key.epoch}
            inputs['masks'] = self.mask(drawn)['masks']
        sample = DataSample(metainfo=meta)
        if label is not None:
            sample.set_gt_label(label)
        return {'inputs': inputs, 'data_samples': sample}

    def _read(self, key: SampleKey) -> tuple[dict, Any, list]:
        """Record and pixels of the image, or of the one in its place.

        Also (path, reason) of each file that could not be read.
        """
        unreadable = []
        for index in self._candidates(key):
            record = {
                'sample_idx': index,
                **self.source.get_data_info(index),
            }
            try:
                return record, self.load(dict(record))['img'], unreadable
            except UnreadableImage as error:
                unreadable.append((error.path, error.reason))
                last = error
        if len(unreadable) == 1:
            raise last
        raise UnreadableImage(
            f'{len(unreadable)} images were tried, one in the place of '
            f'another, and none could be read; the last one: {last}',
            *unreadable[-1],
        ) from last

    def _candidates(self, key: SampleKey) -> Iterator[int]:
        """The key's image, then those to try in its place."""
        yield key.index
        sequence = np.random.SeedSequence(
            (key.seed, key.epoch, key.index, key.occurrence), spawn_key=(0,)
        )
        rng = np.random.Generator(np.random.PCG64(sequence))
        number = min(self.replacements + 1, len(self))
        others = rng.choice(len(self), number, replace=False).tolist()
        if key.index in others:
            others.remove(key.index)
        yield from others[: self.replacements]

    def _check_mask(self, views: Mapping) -> None:
        """Sizes fit the patches; masked groups are known (or switched off)."""
        known = {
            (config or {}).get('group', name) for name, config in views.items()
        }
        for group in getattr(self.mask, 'groups', ()):
            check_keys([group], known, 'mask.groups')
            if group in self.groups and hasattr(self.mask, 'grid'):
                try:
                    self.mask.grid(self.sizes[group])
                except ValueError as error:
                    raise ValueError(
                        f'views of group {group!r}: {error}'
                    ) from error

    def _count_plain_index(self) -> None:
        self._plain_indices += 1
        if self._plain_indices == len(self) + 1:
            warnings.warn(
                'ViewDataset is read by plain indices for more than one pass: '
                'every pass repeats the same views and masks. Train with '
                "sampler=dict(type='PassSampler').",
                stacklevel=3,
            )


def _build_views(views: Mapping) -> dict[str, list[ViewAugmentation]]:
    """Augmentations of each group; one entry for each view."""
    groups: dict[str, list[ViewAugmentation]] = {}
    for name, config in views.items():
        if config is None:
            continue
        where = f'views.{name}'
        check_keys(config, VIEW_KEYS, where)
        settings = dict(config)
        group = settings.pop('group', name)
        num = settings.pop('num', 1)
        if not isinstance(num, int) or num < 0:
            raise ValueError(f'{where}.num must be an int >= 0, got {num!r}.')
        if 'size' not in settings:
            raise TypeError(f'{where} needs a size.')
        try:
            augmentation = ViewAugmentation(**settings, name=where)
        except (TypeError, ValueError) as error:
            raise type(error)(f'{where}: {error}') from error
        if num:
            groups.setdefault(group, []).extend([augmentation] * num)
    for group, members in groups.items():
        sizes = sorted({member.size for member in members})
        if len(sizes) > 1:
            raise ValueError(
                f'the views of group {group!r} have sizes {sizes}, but share '
                'one forward pass: give them one size, or another group.'
            )
    if not groups:
        raise ValueError(
            'no view is switched on: give at least one entry of views a num '
            'above 0.'
        )
    return groups
