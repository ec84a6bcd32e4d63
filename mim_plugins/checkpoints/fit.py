"""Whether the weights of a file fit a model."""

from collections.abc import Mapping

from torch import Tensor, nn

from .errors import CheckpointMismatch
from .keymaps import strip_wrappers


def check_weights(
    model: nn.Module, checkpoint: Mapping, name: str, partial: bool = False
) -> dict[str, Tensor]:
    """The weights of a checkpoint if they fit the model.

    Args:
        model (nn.Module): without a data-parallel wrapper.
        checkpoint (Mapping): from :func:`load_file`, or a state dict.
        name (str): of the file, for messages.
        partial (bool): accept a file that lacks some weights, or has others
            beside, and position embeddings of another length, which the
            backbones interpolate.

    Raises:
        CheckpointMismatch: What differs, and what to do.
    """
    found = checkpoint.get('state_dict', checkpoint)
    tensors = {k: v for k, v in found.items() if isinstance(v, Tensor)}
    found, expected = strip_wrappers(tensors), model.state_dict()
    missing = [key for key in expected if key not in found]
    unknown = [key for key in found if key not in expected]
    if partial and len(missing) < len(expected):
        missing = unknown = []
    shapes = [
        f'{key} {tuple(found[key].shape)} in the file, '
        f'{tuple(value.shape)} in the model'
        for key, value in expected.items()
        if key in found
        and found[key].shape != value.shape
        and not (partial and _same_width(key, found[key], value))
    ]
    differences = [
        f'{len(keys)} {what} (first: {keys[0]})'
        for keys, what in (
            (shapes, 'weights have another shape'),
            (missing, 'of the model are not in the file'),
            (unknown, 'of the file are not in the model'),
        )
        if keys
    ]
    if differences:
        raise CheckpointMismatch(
            f'{name} does not fit the {type(model).__name__} of the config: '
            f'{"; ".join(differences)}. Nothing was loaded. Use the config '
            'that the checkpoint was trained with (a copy lies beside it in '
            'its work folder) and the same --cfg-options.'
        )
    return found


def _same_width(key: str, found: Tensor, expected: Tensor) -> bool:
    return (
        key.endswith('pos_embed')
        and found.shape[-1:] == expected.shape[-1:]
        and found.ndim == expected.ndim
    )
