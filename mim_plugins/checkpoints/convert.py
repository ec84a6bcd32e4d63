"""Checkpoints from one library's layout to another's."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from mmpretrain.models.backbones import VisionTransformer
from torch import Tensor

from .errors import CheckpointError
from .huggingface import (
    CONFIG,
    DEFAULT_EPS,
    huggingface_config,
    ours_to_huggingface,
    read_config,
    save_safetensors,
    weights_of,
)
from .keymaps import State, ours_to_ibot_backbone, strip_wrappers
from .layouts import (
    NETWORKS,
    FoundBackbone,
    describe_backbone,
    find_backbone,
)
from .load import arch_name
from .networks import ibot_to_ours, ours_to_ibot
from .safe import load_file
from .timm import ours_to_timm
from .writing import whole_file

FORMATS = ('ours', 'ibot', 'timm', 'huggingface')
EPS = 1e-6  # what layer norms add here, in iBOT, DINO, MAE and timm
_WRITERS = {
    'ibot': ours_to_ibot_backbone,
    'timm': ours_to_timm,
    'huggingface': ours_to_huggingface,
}


@dataclass
class Conversion:
    """What became of the keys of a file.

    Attributes:
        content (str): what was written, in words.
        placed (int): number of tensors written.
        left_out (list[str]): keys of parts that do not belong to it
            (classifiers, decoders, the other network, optimizer).
        unplaced (list[str]): keys of it that the target has no place for.
        notes (list[str]): what names and shapes do not say.
    """

    content: str
    placed: int = 0
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f'{self.content}: {self.placed} tensors'
        for words, keys in (
            ('left out', self.left_out),
            ('without a place', self.unplaced),
        ):
            if keys:
                text += f'\n{words}: {", ".join(keys)}'
        return '\n'.join([text, *(f'note: {note}' for note in self.notes)])


def convert(
    path: str | os.PathLike,
    out: str | os.PathLike,
    to: str,
    network: str | None = None,
    allow_unplaced: bool = False,
    num_heads: int | None = None,
    names: str | None = None,
) -> Conversion:
    """Read a checkpoint of any layout, write it in another.

    Args:
        path: a checkpoint of this project or an exported backbone; an iBOT,
            DINO or MAE file; a ViT of timm or Hugging Face (file or folder).
        out: the file to write; for ``'huggingface'`` the folder. A name that
            ends in ``.safetensors`` gets that format (``'timm'`` only).
        to: ``'ours'``, ``'ibot'``, ``'timm'`` or ``'huggingface'``.
        network: ``'teacher'`` or ``'student'``. By default all of a
            pre-training file where the target has a place for both
            (``'ours'``, ``'ibot'``), else the teacher.
        allow_unplaced: go on without keys that the target has no place for.
        num_heads: attention heads, for ``'huggingface'`` and where width and
            depth are not those of a known architecture.
        names: whose names the backbone has, see :func:`find_backbone`; found
            by the keys when None.

    Returns:
        Conversion: what was written, and the names of what was not.

    Raises:
        CheckpointError: the file cannot be read, holds nothing to convert,
            or (unless allowed) keys without a place; nothing was written.
    """
    path, out = os.fspath(path), os.fspath(out)
    _check_target(to, out)
    checkpoint = load_file(path)
    pair = network is None and to in ('ours', 'ibot')
    if pair and has_both(checkpoint):
        content, result = _whole(checkpoint, to)
    else:
        found = find_backbone(checkpoint, network or 'teacher', path, names)
        content, result = _backbone(found, to)
        config = read_config(path) if found.names == 'huggingface' else {}
        result.notes += _notes(found, config, to)
    if result.unplaced and not allow_unplaced:
        raise CheckpointError(
            f'{path} holds {len(result.unplaced)} keys that {to} has no '
            f'place for: {", ".join(result.unplaced)}. Nothing was written; '
            'allow it (--allow-unplaced) to go on without them.'
        )
    if to == 'huggingface':
        num_heads = num_heads or config.get('num_attention_heads')
        config = huggingface_config(
            found.state,
            num_heads or _num_heads(found.state),
            config.get('layer_norm_eps', EPS),
        )
        _write_folder(content, config, out, path)
    else:
        _write_file(content, out, path)
    return result


def _check_target(to: str, out: str) -> None:
    if to not in FORMATS:
        raise CheckpointError(f'to={to!r} is not one of {FORMATS}.')
    if out.endswith('.safetensors') and to != 'timm':
        raise CheckpointError(
            f'{out}: a safetensors file is written for timm only'
            + (', Hugging Face gets a folder.' if to[0] == 'h' else '.')
        )


def has_both(checkpoint: Mapping) -> bool:
    """Whether a file holds teacher and student, in our or their layout."""
    if all(isinstance(checkpoint.get(n), Mapping) for n in NETWORKS):
        return True
    names = checkpoint.get('state_dict', checkpoint)
    return all(
        any(re.match(rf'(module\.)?{prefix}', str(name)) for name in names)
        for prefix in (r'student\.', r'teacher\.backbone\.')
    )


def whole_state(checkpoint: Mapping, left_out: list[str]) -> State:
    """State dict of ``IBOT`` from a file with teacher and student.

    Args:
        checkpoint: this project's, or one of official iBOT or DINO.
        left_out: receives entries and keys that have no place in it.
    """
    if isinstance(checkpoint.get('student'), Mapping):
        return ibot_to_ours(checkpoint, left_out)
    found = checkpoint.get('state_dict', checkpoint)
    if found is not checkpoint:
        left_out += [str(k) for k in checkpoint if k != 'state_dict']
    return strip_wrappers(
        {k: v for k, v in found.items() if torch.is_tensor(v)}
    )


def _whole(checkpoint: Mapping, to: str) -> tuple[dict, Conversion]:
    names: list[str] = []
    state = whole_state(checkpoint, names)
    result = Conversion('teacher and student, with heads and centres')
    result.left_out = [k for k in names if k in checkpoint]
    result.unplaced = [k for k in names if k not in checkpoint]
    result.placed = len(state)
    if to == 'ours':
        return {'state_dict': state, 'meta': {}}, result
    official = ours_to_ibot(state, result.unplaced)
    result.placed = sum(map(len, official.values()))
    return official, result


def _backbone(found: FoundBackbone, to: str) -> tuple[dict, Conversion]:
    state = {k: v.detach().clone() for k, v in found.state.items()}
    result = Conversion(
        f'backbone of the {found.network}' if found.network else 'backbone',
        left_out=found.left_out,
        unplaced=found.unplaced,
    )
    if to == 'timm' and state.pop('mask_token', None) is not None:
        result.left_out.append('mask_token')
    if to == 'ours':
        result.placed = len(state)
        meta = describe_backbone(state)
        return {'state_dict': state, 'meta': meta}, result
    content = _WRITERS[to](state, result.unplaced)
    result.placed = len(content)
    if to == 'ibot':
        named = {f'backbone.{k}': v for k, v in content.items()}
        content = {found.network or 'teacher': named}
    return content, result


def _notes(found: FoundBackbone, config: Mapping, to: str) -> list[str]:
    """What a config has to say, since no key and no shape does."""
    notes = []
    if found.names == 'huggingface':
        eps = config.get('layer_norm_eps', DEFAULT_EPS)
        if eps != EPS and to != 'huggingface':
            notes.append(
                f'the layer norms add {eps:g}, not {EPS:g}: set norm_cfg='
                f"dict(type='LN', eps={eps:g}) for equal features"
            )
        activation = config.get('hidden_act', 'gelu')
        if activation != 'gelu':
            notes.append(f'the activation is {activation}, not gelu')
    if 'ln1.weight' not in found.state:
        pooled = "out_type='avg_featmap', " * ('ln2.weight' in found.state)
        notes.append(f'it has no final norm: set {pooled}final_norm=False')
    return notes


def _write_file(content: dict, out: str, path: str) -> None:
    with whole_file(out, path) as partial:
        if out.endswith('.safetensors'):
            save_safetensors(content, partial)
        else:
            torch.save(content, partial)


def _write_folder(content: State, config: dict, out: str, path: str) -> None:
    if os.path.isfile(out):
        raise CheckpointError(
            f'{out} is a file; Hugging Face wants a folder. Name another.'
        )
    target = os.path.join(out, 'model.safetensors')
    with whole_file(target, weights_of(path)) as partial:
        save_safetensors(content, partial)
    target = os.path.join(out, CONFIG)
    with whole_file(target, path) as partial, open(partial, 'w') as file:
        json.dump(config, file, indent=2)


def _num_heads(state: Mapping[str, Tensor]) -> int:
    """Of the architecture of mmpretrain that has these shapes."""
    shape = describe_backbone(state)
    name = arch_name(shape)
    if name is None:
        raise CheckpointError(
            f'Width {shape["width"]} and depth {shape["depth"]} are those of '
            'no known architecture, so the number of attention heads has to '
            'be told (--num-heads).'
        )
    return VisionTransformer.arch_zoo[name]['num_heads']
