from .cross_entropy import (
    CrossViewCrossEntropy,
    SoftCrossEntropy,
    cross_view_cross_entropy,
    soft_cross_entropy,
)

__all__ = [
    'CrossViewCrossEntropy',
    'SoftCrossEntropy',
    'cross_view_cross_entropy',
    'soft_cross_entropy',
]
