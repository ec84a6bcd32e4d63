"""From samples to a batch."""

from collections.abc import Sequence

import numpy as np
import torch
from mmengine.registry import FUNCTIONS
from torch.utils.data import default_collate


@FUNCTIONS.register_module()
def collate_views(batch: Sequence[dict], pad_multiple: int = 64) -> dict:
    """Batch the samples of :class:`ViewDataset`, crop by crop.

    With B samples and V views in a group, row v * B + b of every tensor of
    that group belongs to view v of sample b.

    Args:
        batch: samples with equal groups and view sizes.
        pad_multiple (int): the lists of masked tokens are padded to a
            multiple of this (at least one), so that their length varies
            little between iterations.

    Returns:
        dict: ``data_samples``: list of DataSample; ``inputs``: a dict of

        - ``views``: group -> uint8 (V * B, C, h, w);
        - ``num_views``: group -> V;
        - ``boxes``: group -> float32 (V * B, 5);
        - ``image_size``: float32 (B, 2);
        - ``masks`` (if the samples have them): group -> see
          :func:`batch_masks`.
    """
    if pad_multiple < 1:
        raise ValueError(
            f'pad_multiple must be at least 1, got {pad_multiple!r}.'
        )
    samples = [sample['inputs'] for sample in batch]
    groups = list(samples[0]['views'])
    inputs = {
        'views': {
            g: _crop_major([s['views'][g] for s in samples]) for g in groups
        },
        'num_views': {g: len(samples[0]['views'][g]) for g in groups},
        'boxes': {
            g: _crop_major([s['boxes'][g] for s in samples]) for g in groups
        },
        'image_size': torch.stack([s['image_size'] for s in samples]),
    }
    if 'masks' in samples[0]:
        inputs['masks'] = {
            group: batch_masks(
                np.stack([s['masks'][group] for s in samples], axis=1),
                pad_multiple,
            )
            for group in samples[0]['masks']
        }
    return {
        'inputs': inputs,
        'data_samples': [sample['data_samples'] for sample in batch],
    }


def batch_masks(masks: np.ndarray, pad_multiple: int = 64) -> dict:
    """Masks of one group as flat indices with weights.

    Args:
        masks: bool (V, B, h, w), True where masked.
        pad_multiple (int): see :func:`collate_views`.

    Returns:
        dict:

        - ``mask``: bool (V * B, h * w), row by row;
        - ``grid``: (h, w);
        - ``index``: int64 (M,), positions of the masked tokens in the
          flattened (V * B * h * w), padded with 0;
        - ``weight``: float32 (M,), 1 / masked tokens of the crop, 0 where
          padded;
        - ``count``: number of masked tokens, without the padding.
    """
    height, width = masks.shape[-2:]
    flat = np.ascontiguousarray(masks).reshape(-1, height * width)
    index = np.flatnonzero(flat)
    count = len(index)
    length = max(-(-count // pad_multiple), 1) * pad_multiple
    per_crop = flat.sum(axis=1)
    padded = np.zeros(length, dtype=np.int64)
    padded[:count] = index
    weight = np.zeros(length, dtype=np.float32)
    weight[:count] = 1 / per_crop[index // (height * width)]
    return {
        'mask': torch.from_numpy(flat),
        'grid': (height, width),
        'index': torch.from_numpy(padded),
        'weight': torch.from_numpy(weight),
        'count': count,
    }


def _crop_major(samples: list[list[torch.Tensor]]) -> torch.Tensor:
    """B lists of V tensors as one tensor (V * B, ...).

    In a worker torch's function puts them straight into shared memory.
    """
    return default_collate([t for views in zip(*samples) for t in views])
