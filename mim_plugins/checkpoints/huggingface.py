"""Hugging Face's files of vision transformers: names, folders, safetensors."""

import json
import os
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from .errors import CheckpointError
from .keymaps import (
    State,
    block_rule,
    inverse,
    rename,
    weights_and_biases,
)

WEIGHT_FILES = ('model.safetensors', 'pytorch_model.bin')
CONFIG = 'config.json'
MARK = 'embeddings.patch_embeddings.projection.weight'
# of its files; ours and timm's networks add 1e-6
DEFAULT_EPS = 1e-12

_STEM = {
    'embeddings.cls_token': 'cls_token',
    'embeddings.position_embeddings': 'pos_embed',
    'embeddings.mask_token': 'mask_token',
    **weights_and_biases(
        {
            'embeddings.patch_embeddings.projection': 'patch_embed.projection',
            'layernorm': 'ln1',
        }
    ),
}
_BLOCK = weights_and_biases(
    {
        'layernorm_before': 'ln1',
        'layernorm_after': 'ln2',
        'attention.attention.query': 'attn.query',
        'attention.attention.key': 'attn.key',
        'attention.attention.value': 'attn.value',
        'attention.output.dense': 'attn.proj',
        'intermediate.dense': 'ffn.layers.0.0',
        'output.dense': 'ffn.layers.1',
    }
)
# of the modules of transformers 5, whose files have the names above
_MODULE = weights_and_biases(
    {
        'layernorm_before': 'ln1',
        'layernorm_after': 'ln2',
        'attention.q_proj': 'attn.query',
        'attention.k_proj': 'attn.key',
        'attention.v_proj': 'attn.value',
        'attention.o_proj': 'attn.proj',
        'mlp.fc1': 'ffn.layers.0.0',
        'mlp.fc2': 'ffn.layers.1',
    }
)
_PARTS = ('query', 'key', 'value')


def huggingface_to_ours(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> State:
    """Names of ``transformers.ViTModel`` to mmpretrain's.

    Args:
        state (Mapping[str, Tensor]): of a file, or the state dict of the
            module, whose names are others from transformers 5 on; with or
            without ``vit.`` in front.
        unplaced (list[str], optional): receives the names that have no place
            here, such as ``pooler.dense.weight``.

    Returns:
        dict[str, Tensor]: names of ``MaskedVisionTransformer``; query, key
        and value of a block are stacked in ``attn.qkv``.

    Raises:
        CheckpointError: if a name has no place and ``unplaced`` is None, or
            a block lacks one of query, key and value.
    """
    state = {re.sub('^vit[.]', '', name): v for name, v in state.items()}
    of_file = block_rule(_STEM, _BLOCK, r'encoder\.layer', 'layers')
    of_module = block_rule(_STEM, _MODULE, 'layers', 'layers')
    renamed = rename(
        state,
        lambda name: of_file(name) or of_module(name),
        unplaced,
        'a Hugging Face ViT',
    )
    ours: State = {}
    for name, value in renamed.items():
        match = re.fullmatch(r'(.+\.attn)\.(query|key|value)\.(\w+)', name)
        if match is None:
            ours[name] = value
            continue
        own = [f'{match[1]}.{part}.{match[3]}' for part in _PARTS]
        missing = [key for key in own if key not in renamed]
        if missing:
            raise CheckpointError(
                f'A block has {name}, but not {", ".join(missing)}.'
            )
        fused = f'{match[1]}.qkv.{match[3]}'
        if fused not in ours:
            ours[fused] = torch.cat([renamed[key] for key in own])
    return ours


def ours_to_huggingface(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> State:
    """mmpretrain's ViT names to those of ``transformers.ViTModel``.

    The inverse of :func:`huggingface_to_ours`; arguments and errors alike.
    """
    split: State = {}
    for name, value in state.items():
        match = re.fullmatch(r'(.+\.attn)\.qkv\.(\w+)', name)
        if match is None:
            split[name] = value
            continue
        for part, piece in zip(_PARTS, value.chunk(3), strict=True):
            split[f'{match[1]}.{part}.{match[2]}'] = piece.clone()
    rule = block_rule(
        inverse(_STEM), inverse(_BLOCK), 'layers', 'encoder.layer'
    )
    return rename(split, rule, unplaced, 'a backbone')


def huggingface_config(
    state: Mapping[str, Tensor], num_heads: int, eps: float = 1e-6
) -> dict:
    """``config.json`` for ``transformers.ViTModel``.

    Args:
        state (Mapping[str, Tensor]): a backbone in mmpretrain's names.
        num_heads (int): attention heads, which no shape shows.
        eps (float): what the layer norms add, which does not show either.

    Raises:
        CheckpointError: the images or patches are not square, or there is no
            [CLS], which that model does not know.
    """
    from .layouts import describe_backbone

    if 'cls_token' not in state:
        raise CheckpointError(
            'The backbone has no [CLS] token, which a Hugging Face ViT needs.'
        )
    shape = describe_backbone(state)
    patch, other = shape['patch_size']
    side = round((state['pos_embed'].shape[1] - 1) ** 0.5)
    if patch != other or side**2 != state['pos_embed'].shape[1] - 1:
        raise CheckpointError(
            f'Patches of {patch}x{other} pixels, '
            f'{state["pos_embed"].shape[1] - 1} of them: a Hugging Face ViT '
            'takes square images and patches only.'
        )
    return {
        'architectures': ['ViTModel'],
        'model_type': 'vit',
        'hidden_act': 'gelu',
        'hidden_size': shape['width'],
        'num_hidden_layers': shape['depth'],
        'num_attention_heads': num_heads,
        'intermediate_size': shape['feedforward'],
        'image_size': side * patch,
        'patch_size': patch,
        'num_channels': shape['in_channels'],
        'layer_norm_eps': eps,
        'qkv_bias': 'layers.0.attn.qkv.bias' in state,
    }


def weights_of(path: str) -> str:
    """The file of weights in a Hugging Face folder; other paths as is."""
    if os.path.isdir(path):
        for name in WEIGHT_FILES:
            if os.path.isfile(os.path.join(path, name)):
                return os.path.join(path, name)
    return path


def read_config(path: str) -> dict:
    """``config.json`` beside a file of weights; {} where there is none.

    Raises:
        CheckpointError: it is there and not readable.
    """
    config = os.path.join(os.path.dirname(weights_of(path)), CONFIG)
    if not os.path.isfile(config):
        return {}
    try:
        with open(config, encoding='utf-8') as file:
            return dict(json.load(file))
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            f'{config} could not be read ({error}). Download it again.'
        ) from error


def is_safetensors(path: str) -> bool:
    """Whether a file begins as safetensors files do."""
    with open(path, 'rb') as file:
        return file.read(9)[8:] == b'{'


def load_safetensors(path: str, map_location='cpu') -> State:
    """Tensors of a safetensors file, which cannot hold code.

    Raises:
        CheckpointError: the library is missing, or the file is damaged.
    """
    from_file = _library(path).load_file
    try:
        return from_file(path, device=str(map_location))
    except Exception as error:
        raise CheckpointError(
            f'{path} could not be read as a safetensors file ({error}). '
            'Download or copy it again.'
        ) from error


def save_safetensors(state: State, path: str) -> None:
    """Write tensors as a safetensors file.

    Raises:
        CheckpointError: the library is missing.
    """
    state = {name: value.contiguous() for name, value in state.items()}
    _library(path).save_file(state, path, {'format': 'pt'})


def _library(path: str):
    try:
        import safetensors.torch
    except ImportError:
        raise CheckpointError(
            f'{path} needs the library safetensors. Run: pip install '
            'safetensors'
        ) from None
    return safetensors.torch
