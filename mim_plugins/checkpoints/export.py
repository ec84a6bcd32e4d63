"""A trained backbone as a file that mmpretrain can load by itself."""

import os
from collections.abc import Mapping

import torch

from .errors import CheckpointError
from .keymaps import State
from .layouts import FoundBackbone, describe_backbone, find_backbone
from .safe import load_file
from .writing import whole_file


def export_backbone(
    checkpoint: str | os.PathLike | Mapping, network: str = 'teacher'
) -> State:
    """The backbone of a checkpoint, without its mask token.

    Args:
        checkpoint (str | os.PathLike | Mapping): a file, its content, or a
            state dict; every layout of :func:`find_backbone`.
        network (str): ``'teacher'`` or ``'student'``.

    Returns:
        dict[str, Tensor]: copies on the CPU that fit
        ``mmpretrain.VisionTransformer`` of the same architecture with
        ``strict=True``.

    Raises:
        CheckpointError: if there is no such backbone, or a key of it has no
            place in mmpretrain's.
    """
    return _export(checkpoint, network)[0]


def save_backbone(
    checkpoint: str | os.PathLike,
    out: str | os.PathLike,
    network: str = 'teacher',
    prefix: str = '',
) -> dict:
    """Write the backbone of a checkpoint file to a file of its own.

    Args:
        checkpoint (str | os.PathLike): the file to read.
        out (str | os.PathLike): the file to write; complete or not there.
        network (str): ``'teacher'`` or ``'student'``.
        prefix (str): put before every name; ``'backbone.'`` for a file that
            a whole classifier loads.

    Returns:
        dict: the ``meta`` written beside ``state_dict``: source, network and
        the architecture that the shapes show.

    Raises:
        CheckpointError: as :func:`export_backbone`, or if the two files are
            one.
    """
    checkpoint, out = os.fspath(checkpoint), os.fspath(out)
    state, found = _export(checkpoint, network)
    meta = {
        'source': os.path.basename(checkpoint),
        'network': found.network,
        **describe_backbone(state),
    }
    named = {f'{prefix}{name}': value for name, value in state.items()}
    with whole_file(out, checkpoint) as partial:
        torch.save({'state_dict': named, 'meta': meta}, partial)
    return meta


def _export(checkpoint, network: str) -> tuple[State, FoundBackbone]:
    source = 'The checkpoint'
    if not isinstance(checkpoint, Mapping):
        source = os.fspath(checkpoint)
        checkpoint = load_file(checkpoint)
    found = find_backbone(checkpoint, network, source)
    if found.unplaced:
        raise CheckpointError(
            f'{source} holds keys that mmpretrain.VisionTransformer has no '
            f'place for: {", ".join(found.unplaced)}. Nothing was exported.'
        )
    state = {
        name: value.detach().cpu().clone()
        for name, value in found.state.items()
        if name != 'mask_token'
    }
    return state, found
