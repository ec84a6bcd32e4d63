from .base import MaskedDistiller
from .ibot import IBOT
from .outputs import Outputs, Tokens

__all__ = ['IBOT', 'MaskedDistiller', 'Outputs', 'Tokens']
