"""Checkpoints from one library's layout to another's."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import CheckpointError
from .huggingface import (
    huggingface_config,
    ours_to_huggingface,
    save_safetensors,
    weights_of,
)
from .keymaps import State, ours_to_ibot_backbone, strip_wrappers
from .layouts import NETWORKS, describe_backbone, find_backbone
from .load import arch_name
from .networks import ibot_to_ours, ours_to_ibot
from .safe import load_file
from .writing import whole_file

FORMATS = ('ours', 'ibot', 'timm', 'huggingface')


@dataclass
class Conversion:
    """What became of the keys of a file.

    Attributes:
        content (str): what was written, in words.
        placed (int): number of tensors written.
        left_out (list[str]): keys of parts that do not belong to it
            (classifiers, decoders, optimizer).
        unplaced (list[str]): keys of it that the target has no place for.
    """

    content: str
    placed: int = 0
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
        return text


def convert(
    path: str | os.PathLike,
    out: str | os.PathLike,
    to: str,
    network: str | None = None,
    allow_unplaced: bool = False,
    num_heads: int | None = None,
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
        content, result, state = _backbone(checkpoint, to, network, path)
    if result.unplaced and not allow_unplaced:
        raise CheckpointError(
            f'{path} holds {len(result.unplaced)} keys that {to} has no '
            f'place for: {", ".join(result.unplaced)}. Nothing was written; '
            'allow it (--allow-unplaced) to go on without them.'
        )
    if to == 'huggingface':
        _write_folder(content, state, out, path, num_heads)
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


def _backbone(
    checkpoint: Mapping, to: str, network: str | None, path: str
) -> tuple[dict, Conversion, State]:
    found = find_backbone(checkpoint, network or 'teacher', path)
    state = {k: v.detach().clone() for k, v in found.state.items()}
    result = Conversion(
        f'backbone of the {found.network}' if found.network else 'backbone',
        left_out=found.left_out,
        unplaced=found.unplaced,
    )
    if to == 'timm' and state.pop('mask_token', None) is not None:
        result.left_out.append('mask_token')
    if to == 'ours':
        content = {'state_dict': state, 'meta': describe_backbone(state)}
        result.placed = len(state)
        return content, result, state
    if to == 'huggingface':
        content = ours_to_huggingface(state, result.unplaced)
    else:
        content = ours_to_ibot_backbone(state, result.unplaced)
    result.placed = len(content)
    if to == 'timm':
        content = {_timm_name(k): v for k, v in content.items()}
    if to == 'ibot':
        named = {f'backbone.{k}': v for k, v in content.items()}
        content = {found.network or 'teacher': named}
    return content, result, state


def _timm_name(name: str) -> str:
    return re.sub(r'\.gamma_(\d)$', r'.ls\1.gamma', name)


def _write_file(content: dict, out: str, path: str) -> None:
    with whole_file(out, path) as partial:
        if out.endswith('.safetensors'):
            save_safetensors(content, partial)
        else:
            torch.save(content, partial)


def _write_folder(
    content: State, state: State, out: str, path: str, heads: int | None
) -> None:
    if os.path.isfile(out):
        raise CheckpointError(
            f'{out} is a file; Hugging Face wants a folder. Name another.'
        )
    config = huggingface_config(state, heads or _num_heads(state))
    target = os.path.join(out, 'model.safetensors')
    with whole_file(target, weights_of(path)) as partial:
        save_safetensors(content, partial)
    with open(os.path.join(out, 'config.json'), 'w') as file:
        json.dump(config, file, indent=2)


def _num_heads(state: Mapping[str, Tensor]) -> int:
    """Of the architecture of mmpretrain that has these shapes."""
    from mmpretrain.models.backbones import VisionTransformer

    shape = describe_backbone(state)
    name = arch_name(shape)
    if name is None:
        raise CheckpointError(
            f'Width {shape["width"]} and depth {shape["depth"]} are those of '
            'no known architecture, so the number of attention heads has to '
            'be told (--num-heads).'
        )
    return VisionTransformer.arch_zoo[name]['num_heads']
