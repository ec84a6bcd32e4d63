"""Names of this package's models in ``mmpretrain.list_models``."""

import functools
from pathlib import Path

from mmpretrain.apis import ModelHub

PACKAGE = Path(__file__).parent


@functools.cache
def register_models() -> None:
    """Make the models of ``model-index.yml`` known to mmpretrain, once.

    The file lies in ``.mim`` of an installed package, or at the root of a
    checkout.
    """
    for root in (PACKAGE / '.mim', PACKAGE.parent):
        path = root / 'model-index.yml'
        if path.is_file():
            ModelHub.register_model_index(path, config_prefix=root)
            return
