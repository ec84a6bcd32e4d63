"""Data side: samples keyed by pass, views, masks, batches.

The parts register themselves in mmpretrain's ``DATASETS``, ``TRANSFORMS`` and
``DATA_SAMPLERS`` and in mmengine's ``FUNCTIONS`` when this package is
imported.
"""

from .collate import collate_views
from .samplers import PassSampler, SampleKey
from .transforms import (
    BlockMask,
    LoadImage,
    RandomMask,
    ResizeShortEdge,
    ViewAugmentation,
)
from .view_dataset import ViewDataset

__all__ = [
    'BlockMask',
    'LoadImage',
    'PassSampler',
    'RandomMask',
    'ResizeShortEdge',
    'SampleKey',
    'ViewAugmentation',
    'ViewDataset',
    'collate_views',
]
