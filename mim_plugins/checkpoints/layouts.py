"""Finding the backbone in the kinds of files that hold one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import CheckpointError
from .huggingface import MARK, huggingface_to_ours
from .keymaps import (
    State,
    ibot_backbone_to_ours,
    strip_prefix,
    strip_wrappers,
)
from .timm import timm_to_ours

NETWORKS = ('teacher', 'student')
# whose names a backbone may have -> what translates them
READERS = {
    'ours': None,
    'ibot': ibot_backbone_to_ours,
    'dino': ibot_backbone_to_ours,
    'mae': timm_to_ours,
    'timm': timm_to_ours,
    'huggingface': huggingface_to_ours,
}
# parts beside an encoder: classifiers, MAE's decoder, Hugging Face's pooler
_BESIDE = re.compile(
    r'(vit\.)?(head|head_dist|fc|classifier|pooler|pre_logits)\.'
    r'|decoder(_|\.)|mask_token$'
)
_OURS = {'teacher': 'teacher.backbone.', 'student': 'student.'}


@dataclass
class FoundBackbone:
    """A backbone in mmpretrain's names, and what was beside it.

    Attributes:
        state (dict[str, Tensor]): its parameters.
        network (str | None): ``'teacher'`` or ``'student'``; None if the
            file holds one backbone only.
        unplaced (list[str]): names of the backbone with no place in ours.
        left_out (list[str]): names of other parts, such as heads, and of
            other entries of the file.
        names (str): whose names it had, one of :data:`READERS`.
    """

    state: State
    network: str | None = None
    names: str = 'ours'
    unplaced: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def find_backbone(
    checkpoint: Mapping,
    network: str = 'teacher',
    source: str = 'The file',
    names: str | None = None,
) -> FoundBackbone:
    """Find the backbone in a loaded file.

    Files of this project, official iBOT, DINO and MAE files, exported
    backbones, classifiers (``backbone.*``) and plain state dicts, in
    mmpretrain's, timm's or Hugging Face's names.

    Args:
        checkpoint (Mapping): from :func:`load_file`, or a state dict.
        network (str): ``'teacher'`` or ``'student'``, where there are two.
        source (str): how errors name the file.
        names (str, optional): whose names the backbone has, one of
            :data:`READERS`; found by the keys when None.

    Raises:
        ValueError: for another ``network`` or ``names``.
        CheckpointError: if there is no ViT backbone or not that network.
    """
    if network not in NETWORKS:
        raise ValueError(f'network={network!r}: use one of {NETWORKS}.')
    if names not in (None, *READERS):
        raise ValueError(f'names={names!r}: use one of {tuple(READERS)}.')
    official = [n for n in NETWORKS if isinstance(checkpoint.get(n), Mapping)]
    if official:
        _require(network, official, source)
        flat = _tensors(checkpoint[network], f'{source}: {network}')
        found = _split(flat, 'backbone.', network)
        beside = [str(key) for key in checkpoint if key != network]
    else:
        beside = []
        for key in ('state_dict', 'model'):
            if isinstance(checkpoint.get(key), Mapping):
                beside = [str(other) for other in checkpoint if other != key]
                checkpoint = checkpoint[key]
                break
        flat = _tensors(checkpoint, source)
        present = [
            n for n in NETWORKS if any(k.startswith(_OURS[n]) for k in flat)
        ]
        if present:
            _require(network, present, source)
            found = _split(flat, _OURS[network], network)
        else:
            found = _split(flat, 'backbone.', None)
    found.names = names or _names_of(found.state, bool(official))
    read = READERS[found.names]
    if read is not None:
        found.state = read(found.state, found.unplaced)
    others = [k for k in found.unplaced if _BESIDE.match(k)]
    found.unplaced = [k for k in found.unplaced if k not in others]
    found.left_out += others + beside
    needed = ('patch_embed.projection.weight', 'layers.0.attn.qkv.weight')
    if any(key not in found.state for key in needed):
        first = ', '.join(list(map(str, flat))[:5]) or 'none'
        raise CheckpointError(
            f'{source} holds no vision transformer: '
            f'{" or ".join(needed)} (or the timm name of it) is missing. Its '
            f'first keys: {first}.'
        )
    return found


def _names_of(state: State, official: bool) -> str:
    """Whose names a backbone has, one of :data:`READERS`."""
    if any(k.endswith(MARK) for k in state):
        return 'huggingface'
    if any(k.startswith(('blocks.', 'patch_embed.proj.')) for k in state):
        return 'ibot' if official else 'timm'
    return 'ours'


def describe_backbone(state: Mapping[str, Tensor]) -> dict:
    """Architecture that a backbone's parameters show.

    Args:
        state (Mapping[str, Tensor]): mmpretrain's names.

    Returns:
        dict: ``width``, ``depth``, ``feedforward`` (None if the first block
        has no plain MLP), ``patch_size`` (h, w), ``in_channels``.  The
        number of heads does not show in any shape.
    """
    patch = state['patch_embed.projection.weight']
    depth = 1 + max(
        int(name.split('.')[1]) for name in state if name.startswith('layers.')
    )
    feedforward = state.get('layers.0.ffn.layers.0.0.weight')
    return {
        'width': patch.shape[0],
        'depth': depth,
        'feedforward': None if feedforward is None else len(feedforward),
        'patch_size': tuple(patch.shape[2:]),
        'in_channels': patch.shape[1],
    }


def _split(flat: State, prefix: str, network: str | None) -> FoundBackbone:
    """The part below a prefix, or everything where nothing has it."""
    inside = strip_prefix(flat, prefix)
    if not inside:
        return FoundBackbone(flat, network)
    rest = [k for k in flat if not k.startswith(prefix)]
    return FoundBackbone(inside, network, left_out=rest)


def _require(network: str, present: list[str], source: str) -> None:
    if network not in present:
        raise CheckpointError(
            f'{source} holds no {network}, only a {present[0]}. Ask for '
            f'network={present[0]!r}.'
        )


def _tensors(state: Mapping, source: str) -> State:
    odd = [str(k) for k, v in state.items() if not torch.is_tensor(v)]
    if odd:
        raise CheckpointError(
            f'{source} holds no state dict: {", ".join(odd[:5])} '
            f'{"is" if len(odd) == 1 else "are"} not tensors.'
        )
    return strip_wrappers(state)
