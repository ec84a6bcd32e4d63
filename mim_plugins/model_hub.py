"""Names of this package's models in ``mmpretrain.list_models``."""

from pathlib import Path

from mmpretrain.apis import ModelHub
from modelindex.load_model_index import load

PACKAGE = Path(__file__).parent


def register_models() -> list[str]:
    """Make the models of ``model-index.yml`` known to mmpretrain, once.

    The file lies in ``.mim`` of an installed package, or at the root of a
    checkout.

    Returns:
        list[str]: the names that were added.
    """
    for root in (PACKAGE / '.mim', PACKAGE.parent):
        path = root / 'model-index.yml'
        if not path.is_file():
            continue
        index = load(str(path))
        index.build_models_with_collections()
        names = [model.name.lower() for model in index.models]
        if not any(ModelHub.has(name) for name in names):
            ModelHub.register_model_index(path, config_prefix=root)
            return names
        break
    return []
