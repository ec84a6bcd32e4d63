from .attention import select_attention
from .masked_vit import MaskedVisionTransformer
from .position_embedding import (
    POSITION_MODES,
    resize_position_embedding,
)

__all__ = [
    'POSITION_MODES',
    'MaskedVisionTransformer',
    'resize_position_embedding',
    'select_attention',
]
