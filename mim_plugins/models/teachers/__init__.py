from .ema import EMATeacher
from .ema_update import common_names, ema_update
from .frozen import FrozenNetwork
from .tokenizers import DALLETokenizer, FrozenTokenizer

__all__ = [
    'DALLETokenizer',
    'EMATeacher',
    'FrozenNetwork',
    'FrozenTokenizer',
    'common_names',
    'ema_update',
]
