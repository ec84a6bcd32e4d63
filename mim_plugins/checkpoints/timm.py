"""Parameter names of timm's vision transformers, and of MAE's encoder.

They are those of the official iBOT encoder but for the layer scale and the
norms that only some networks have.  A network that pools patch tokens has
``fc_norm`` in the place of its final norm: mmpretrain's ``ln2``, with
``out_type='avg_featmap', final_norm=False``.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .keymaps import (
    BLOCK,
    STEM,
    State,
    block_rule,
    inverse,
    rename,
    weights_and_biases,
)

_NORMS = weights_and_biases({'norm_pre': 'pre_norm', 'fc_norm': 'ln2'})
_SCALES = {
    'ls1.gamma': 'attn.gamma1.weight',
    'ls2.gamma': 'ffn.gamma2.weight',
}
_WRITTEN_STEM = {k: v for k, v in STEM.items() if k != 'masked_embed'}
_WRITTEN_BLOCK = {k: v for k, v in BLOCK.items() if 'gamma' not in k}


def timm_to_ours(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> State:
    """timm's or MAE's ViT names to mmpretrain's.

    Names of plain iBOT and DINO encoders are read as well.  A position
    embedding that has no entry for [CLS] (``no_embed_class``) gets one of
    zeros, which adds nothing.

    Args:
        state (Mapping[str, Tensor]): names such as
            ``blocks.0.mlp.fc1.weight``.
        unplaced (list[str], optional): receives the names that have no
            place here, such as ``blocks.0.attn.q_norm.weight``.

    Returns:
        dict[str, Tensor]: names of ``MaskedVisionTransformer``.

    Raises:
        CheckpointError: if a name has no place and ``unplaced`` is None.
    """
    rule = block_rule(
        {**STEM, **_NORMS}, {**BLOCK, **_SCALES}, 'blocks', 'layers'
    )
    renamed = rename(state, rule, unplaced, 'a timm ViT')
    if 'mask_token' in renamed:
        renamed['mask_token'] = renamed['mask_token'].reshape(1, 1, -1)
    if 'cls_token' in renamed and 'pos_embed' in renamed:
        table = renamed['pos_embed']
        if math.isqrt(table.shape[1]) ** 2 == table.shape[1]:
            nothing = torch.zeros_like(table[:, :1])
            renamed['pos_embed'] = torch.cat([nothing, table], 1)
    return renamed


def ours_to_timm(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> State:
    """mmpretrain's ViT names to timm's.

    The inverse of :func:`timm_to_ours`; a mask token has no place there.
    Arguments and errors alike.
    """
    rule = block_rule(
        inverse({**_WRITTEN_STEM, **_NORMS}),
        inverse({**_WRITTEN_BLOCK, **_SCALES}),
        'layers',
        'blocks',
    )
    return rename(state, rule, unplaced, 'a backbone')
