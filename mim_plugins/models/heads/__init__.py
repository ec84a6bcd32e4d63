from .ibot_head import IBOTHead
from .normalized_linear import NormalizedLinear

__all__ = ['IBOTHead', 'NormalizedLinear']
