"""Optimizer wrappers and the parameter groups that they train."""

from .clip import clip_global_, clip_per_tensor_, gradient_norms
from .constructor import (
    LayerDecayConstructor,
    PretrainOptimConstructor,
    is_decayed,
)
from .fused import supports_fused
from .precision import resolve_precision
from .wrapper import PretrainOptimWrapper

__all__ = [
    'LayerDecayConstructor',
    'PretrainOptimConstructor',
    'PretrainOptimWrapper',
    'clip_global_',
    'clip_per_tensor_',
    'gradient_norms',
    'is_decayed',
    'resolve_precision',
    'supports_fused',
]
