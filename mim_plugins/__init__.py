"""Masked image modelling for the OpenMMLab ecosystem.

Importing the package registers its parts in mmpretrain's registries, which is
what ``custom_imports = dict(imports=['mim_plugins'])`` does in a config.
"""

from .compat import apply_patches, check_versions
from .version import __version__

check_versions()
apply_patches()

from . import datasets, engine, evaluation, models  # noqa: E402
from .model_hub import register_models  # noqa: E402

register_models()

__all__ = ['__version__', 'datasets', 'engine', 'evaluation', 'models']
