"""Loading, views and masks."""

from .loading import LoadImage, ResizeShortEdge, UnreadableImage
from .masks import BlockMask, RandomMask
from .views import ViewAugmentation, ViewParameters

__all__ = [
    'BlockMask',
    'LoadImage',
    'RandomMask',
    'ResizeShortEdge',
    'UnreadableImage',
    'ViewAugmentation',
    'ViewParameters',
]
