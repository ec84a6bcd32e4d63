"""Parameter names of official iBOT and DINO files, and of this project.

Backbones go between the names of the official encoder, which are timm's of
its time, and mmpretrain's.  Heads go between ``weight_g`` / ``weight_v`` of a
weight-normalised layer and the plain ``scale`` / ``weight`` used here.  Values
stay as they are, so that each map undoes the other exactly.
"""

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from .errors import CheckpointError

State = dict[str, Tensor]


def weights_and_biases(names: Mapping[str, str]) -> dict[str, str]:
    """A table of parameters out of one of modules that have both."""
    return {
        f'{theirs}.{leaf}': f'{ours}.{leaf}'
        for theirs, ours in names.items()
        for leaf in ('weight', 'bias')
    }


STEM = {
    'cls_token': 'cls_token',
    'pos_embed': 'pos_embed',
    'masked_embed': 'mask_token',
    **weights_and_biases(
        {'patch_embed.proj': 'patch_embed.projection', 'norm': 'ln1'}
    ),
}
BLOCK = {
    **weights_and_biases(
        {
            'norm1': 'ln1',
            'norm2': 'ln2',
            'attn.qkv': 'attn.qkv',
            'attn.proj': 'attn.proj',
            'mlp.fc1': 'ffn.layers.0.0',
            'mlp.fc2': 'ffn.layers.1',
        }
    ),
    'gamma_1': 'attn.gamma1.weight',
    'gamma_2': 'ffn.gamma2.weight',
}
_LAST_LAYER = {
    'last_layer.weight_v': 'last_layer.weight',
    'last_layer.weight_g': 'last_layer.scale',
    'last_layer2.weight_v': 'patch_last_layer.weight',
    'last_layer2.weight_g': 'patch_last_layer.scale',
}


def inverse(names: dict[str, str]) -> dict[str, str]:
    """The table read from right to left."""
    return {ours: theirs for theirs, ours in names.items()}


def strip_prefix(state: Mapping[str, Tensor], prefix: str) -> State:
    """Entries below a prefix, by the rest of their names."""
    return {
        name[len(prefix) :]: value
        for name, value in state.items()
        if name.startswith(prefix)
    }


def strip_wrappers(state: Mapping[str, Tensor]) -> State:
    """Names without the traces of DDP and of ``torch.compile``."""
    names = [name.replace('_orig_mod.', '') for name in state]
    if names and all(name.startswith('module.') for name in names):
        names = [name[len('module.') :] for name in names]
    return dict(zip(names, state.values()))


def rename(
    state: Mapping[str, Tensor],
    rule: Callable[[str], str | None],
    unplaced: list[str] | None,
    what: str,
) -> State:
    """Rename by a rule; what it does not know is named, never dropped."""
    renamed, unknown = {}, []
    for name, value in state.items():
        target = rule(name)
        if target is None:
            unknown.append(name)
        else:
            renamed[target] = value
    if unplaced is not None:
        unplaced.extend(unknown)
    elif unknown:
        raise CheckpointError(
            f'{len(unknown)} of {len(state)} keys of {what} have no place: '
            f'{", ".join(unknown)}. Pass a list as `unplaced` to go on '
            'without them.'
        )
    return renamed


def block_rule(
    stem: Mapping[str, str], block: Mapping[str, str], source: str, target: str
) -> Callable[[str], str | None]:
    """A rule for :func:`rename` out of two tables.

    Args:
        stem (Mapping[str, str]): names outside of the blocks.
        block (Mapping[str, str]): names inside of one.
        source, target (str): what stands before a block's number there
            (a pattern) and here.
    """

    def rule(name: str) -> str | None:
        if name in stem:
            return stem[name]
        match = re.fullmatch(rf'{source}\.(\d+)\.(.+)', name)
        if match is None or match[2] not in block:
            return None
        return f'{target}.{match[1]}.{block[match[2]]}'

    return rule


def ibot_backbone_to_ours(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> State:
    """Official iBOT or DINO ViT names to mmpretrain's.

    Args:
        state (Mapping[str, Tensor]): names such as
            ``blocks.0.mlp.fc1.weight``, without ``backbone.``;
            ``masked_embed`` (1, D) becomes ``mask_token`` (1, 1, D).
        unplaced (list[str], optional): receives the names that have no
            place here, such as ``fc_norm.weight``.

    Returns:
        dict[str, Tensor]: names of ``MaskedVisionTransformer``.

    Raises:
        CheckpointError: if a name has no place and ``unplaced`` is None.
    """
    rule = block_rule(STEM, BLOCK, 'blocks', 'layers')
    renamed = rename(state, rule, unplaced, 'an iBOT backbone')
    if 'mask_token' in renamed:
        renamed['mask_token'] = renamed['mask_token'].reshape(1, 1, -1)
    return renamed


def ours_to_ibot_backbone(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> State:
    """mmpretrain's ViT names to those of official iBOT.

    The inverse of :func:`ibot_backbone_to_ours`; arguments and errors alike.
    """
    rule = block_rule(inverse(STEM), inverse(BLOCK), 'layers', 'blocks')
    renamed = rename(state, rule, unplaced, 'a backbone')
    if 'masked_embed' in renamed:
        renamed['masked_embed'] = renamed['masked_embed'].reshape(1, -1)
    return renamed


def ibot_head_to_ours(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> State:
    """Official names of an iBOT (or DINO) head to those of ``IBOTHead``.

    The official code lists a shared module once for each of its names.  Such
    twins (``last_layer2`` of a shared head, ``norm`` of the MLP) are left
    out when they are equal, since one name is enough here.

    Args:
        state (Mapping[str, Tensor]): names such as ``mlp.0.weight``,
            ``last_layer.weight_g``, without ``head.``.
        unplaced (list[str], optional): receives the names that have no
            place here.

    Returns:
        dict[str, Tensor]: ``mlp.N.*``, ``last_layer.weight`` (K, D),
        ``last_layer.scale`` (K, 1), and ``patch_last_layer.*`` where [CLS]
        and patches have a layer each.

    Raises:
        CheckpointError: if a name has no place and ``unplaced`` is None.
    """
    state = dict(state)
    if _twins(state, 'last_layer.', 'last_layer2.'):
        state = _without(state, 'last_layer2.')
    if _twins(state, 'mlp.1.', 'norm.'):
        state = _without(state, 'norm.')

    def rule(name: str) -> str | None:
        if name in ('mlp.weight', 'mlp.bias'):  # a single layer
            return name.replace('mlp.', 'mlp.0.')
        if re.fullmatch(r'mlp\.\d+\.\w+', name):
            return name
        return _LAST_LAYER.get(name)

    return rename(state, rule, unplaced, 'an iBOT head')


def ours_to_ibot_head(
    state: Mapping[str, Tensor],
    unplaced: list[str] | None = None,
    patch_names: bool = True,
) -> State:
    """Names of ``IBOTHead`` to those of the official code.

    Args:
        state (Mapping[str, Tensor]): see :func:`ibot_head_to_ours`.
        unplaced (list[str], optional): receives the names that have no
            place there, such as ``patch_mlp.0.weight``: officially [CLS] and
            patches always share the MLP.
        patch_names (bool): whether a shared last layer is listed as
            ``last_layer2`` too, as in iBOT; False for a DINO head.

    Raises:
        CheckpointError: if a name has no place and ``unplaced`` is None.
    """
    last = inverse(_LAST_LAYER)
    single = 'mlp.0.weight' in state and not any(
        re.match(r'mlp\.[1-9]', name) for name in state
    )

    def rule(name: str) -> str | None:
        if single and name in ('mlp.0.weight', 'mlp.0.bias'):
            return name.replace('mlp.0.', 'mlp.')
        if re.fullmatch(r'mlp\.\d+\.\w+', name):
            return name
        return last.get(name)

    renamed = rename(state, rule, unplaced, 'a head')
    if 'mlp.1.weight' in renamed:  # a norm; linear layers are 0, 2, 4 without
        twin = strip_prefix(renamed, 'mlp.1.')
        renamed.update({f'norm.{k}': v for k, v in twin.items()})
    if patch_names and 'last_layer2.weight_v' not in renamed:
        twin = strip_prefix(renamed, 'last_layer.')
        renamed.update({f'last_layer2.{k}': v for k, v in twin.items()})
    return renamed


def _twins(state: State, first: str, second: str) -> bool:
    one, two = strip_prefix(state, first), strip_prefix(state, second)
    return (
        bool(two)
        and one.keys() == two.keys()
        and all(
            one[k].shape == two[k].shape and bool((one[k] == two[k]).all())
            for k in two
        )
    )


def _without(state: State, prefix: str) -> State:
    return {k: v for k, v in state.items() if not k.startswith(prefix)}
