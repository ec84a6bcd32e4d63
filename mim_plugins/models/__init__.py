from .backbones import *  # noqa: F403
from .data_preprocessor import ViewDataPreprocessor
from .heads import *  # noqa: F403
from .losses import *  # noqa: F403
from .normalizations import *  # noqa: F403
from .objectives import *  # noqa: F403
from .selfsup import *  # noqa: F403
from .teachers import *  # noqa: F403

__all__ = ['ViewDataPreprocessor']
