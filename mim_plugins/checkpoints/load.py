"""Putting the weights of a file into a backbone, or saying why not."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from mmengine.logging import print_log
from mmpretrain.models.backbones import VisionTransformer
from torch import Tensor, nn

from .errors import CheckpointError, CheckpointMismatch
from .layouts import NETWORKS, describe_backbone, find_backbone
from .safe import load_file

# what a model may have beyond a file: its own values stay
_OPTIONAL = ('mask_token', 'ln2.weight', 'ln2.bias')


@dataclass
class LoadReport:
    """What became of the keys of a file.

    Attributes:
        loaded (list[str]): parameters that took their values from the file.
        missing (list[str]): parameters of the model that the file has not;
            they kept their values (``mask_token``, say).
        unplaced (list[str]): keys of the file's backbone that the model has
            no place for.
        left_out (list[str]): keys of other parts of the file, such as heads.
        resized (list[str]): those of ``loaded`` that were interpolated.
    """

    loaded: list[str]
    missing: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f'{len(self.loaded)} parameters loaded'
        for name, keys in (
            ('interpolated', self.resized),
            ('kept, not in the file', self.missing),
            ('in the file, without a place', self.unplaced),
        ):
            if keys:
                text += f'; {name}: {", ".join(keys)}'
        if self.left_out:
            text += f'; {len(self.left_out)} keys of other parts left out'
        return f'{text}.'


def load_backbone(
    model: nn.Module,
    path: str | os.PathLike,
    network: str = 'teacher',
    config_name: str = 'model.student',
) -> LoadReport:
    """Load a pre-trained backbone, all of it or nothing.

    Args:
        model (nn.Module): ``MaskedVisionTransformer`` or mmpretrain's
            ``VisionTransformer``.
        path (str | os.PathLike): this project's pre-training checkpoint, an
            exported backbone, an official iBOT or DINO file, a classifier.
        network (str): ``'teacher'`` or ``'student'``, where there are two.
        config_name (str): where the config sets the backbone, for errors.

    Returns:
        LoadReport: loaded, missing and unplaced keys; it is logged too.

    Raises:
        CheckpointMismatch: if width, depth, patch size or any other shape
            differ.  The position embedding alone is interpolated.
        CheckpointError: if the file cannot be read or has no such backbone.
    """
    path = os.fspath(path)
    found = find_backbone(load_file(path), network, path)
    own = model.state_dict()
    _check_architecture(found.state, own, model, path, config_name)
    state = {k: v for k, v in found.state.items() if k in own}
    report = LoadReport(
        loaded=list(state),
        missing=[k for k in own if k not in state],
        unplaced=found.unplaced + [k for k in found.state if k not in own],
        left_out=found.left_out,
        resized=[k for k in state if state[k].shape != own[k].shape],
    )
    _check_keys(report, state, own, path)
    model.load_state_dict(state, strict=False)
    print_log(f'{path}: {report}', logger='current')
    return report


def load_pretrained(
    model: nn.Module, path: str | os.PathLike, prefix: str | None = None
) -> LoadReport:
    """:func:`load_backbone` with the arguments of mmengine's ``Pretrained``.

    Args:
        model (nn.Module): the backbone.
        path (str | os.PathLike): ``init_cfg.checkpoint``.
        prefix (str, optional): ``init_cfg.prefix``: ``'student'`` or
            ``'teacher'`` in a file with both (the teacher by default), or
            ``'backbone'`` in a classifier's; what follows a dot is found.

    Raises:
        CheckpointError: as :func:`load_backbone`, or for another prefix.
    """
    network = (prefix or 'backbone').partition('.')[0]
    if network == 'backbone':
        network = 'teacher'
    if network not in NETWORKS:
        raise CheckpointError(
            f"init_cfg.prefix is {prefix!r}: set it to 'teacher' or "
            "'student' for a file with both, or leave it out."
        )
    return load_backbone(model, path, network)


def _check_architecture(
    state: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    model: nn.Module,
    path: str,
    config_name: str,
) -> None:
    theirs, ours = describe_backbone(state), describe_backbone(own)
    differ = [key for key in theirs if theirs[key] != ours[key]]
    if not differ:
        return
    words = {
        'width': lambda d: f'width {d["width"]}',
        'depth': lambda d: f'depth {d["depth"]}',
        'feedforward': lambda d: f'feed-forward width {d["feedforward"]}',
        'patch_size': lambda d: f'patch size {_size(d)}',
        'in_channels': lambda d: f'{d["in_channels"]} input channels',
    }
    changes = []
    arch_differs = {'width', 'depth', 'feedforward'} & set(differ)
    if arch_differs:
        name = arch_name(theirs)
        changes.append(
            f'{config_name}.arch={name!r}'
            if name
            else f'{config_name}.arch=dict(embed_dims={theirs["width"]}, '
            f'num_layers={theirs["depth"]}, feedforward_channels='
            f'{theirs["feedforward"]}, num_heads=...)'
        )
        if 'width' in differ:  # the hidden width follows from it
            differ = [key for key in differ if key != 'feedforward']
    if 'patch_size' in differ:
        changes.append(f'{config_name}.patch_size={_size(theirs)}')
    if 'in_channels' in differ:
        changes.append(f'{config_name}.in_channels={theirs["in_channels"]}')
    arch = getattr(model, 'arch', None) or arch_name(ours)
    note = f' (arch={arch!r})' if arch and arch_differs else ''
    raise CheckpointMismatch(
        f'{path} holds a backbone of '
        f'{" and ".join(words[k](theirs) for k in differ)}; the config builds '
        f'{" and ".join(words[k](ours) for k in differ)}{note}. '
        f'Set {" and ".join(changes)}, or load another checkpoint. '
        'Nothing was loaded.'
    )


def _check_keys(
    report: LoadReport,
    state: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    path: str,
) -> None:
    problems = []
    missing = [k for k in report.missing if k not in _OPTIONAL]
    if missing:
        problems.append(f'the file lacks {", ".join(missing)}')
    # a part of a block without a place would change every feature
    extra = [
        k for k in report.unplaced if k.startswith(('layers.', 'blocks.'))
    ]
    if extra:
        problems.append(f'the config has no place for {", ".join(extra)}')
    for key in report.resized:
        if key != 'pos_embed' or not _square(state, own):
            problems.append(
                f'{key} is {tuple(state[key].shape)} in the file and '
                f'{tuple(own[key].shape)} in the config'
            )
    if problems:
        raise CheckpointMismatch(
            f'{path} does not fit the backbone of the config: '
            f'{"; ".join(problems)}. Give the backbone the arguments that it '
            'was trained with, or load another checkpoint. Nothing was '
            'loaded.'
        )


def _square(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> bool:
    """Whether the file's position embedding is one of a square grid."""
    patches = state['pos_embed'].shape[1] - ('cls_token' in state)
    same_tokens = ('cls_token' in state) == ('cls_token' in own)
    return same_tokens and round(patches**0.5) ** 2 == patches


def _size(description: dict) -> int | tuple:
    height, width = description['patch_size']
    return height if height == width else (height, width)


def arch_name(description: dict) -> str | None:
    """mmpretrain's name of an architecture, the plainest of its names."""
    names = [
        name
        for name, arch in VisionTransformer.arch_zoo.items()
        if (arch['embed_dims'], arch['num_layers'])
        == (description['width'], description['depth'])
        and arch['feedforward_channels'] == description['feedforward']
        and len(name) > 1
        and not name.endswith(('-t', '-s', '-b', '-g'))
    ]
    return min(names, key=lambda n: ('dinov2' in n, len(n)), default=None)
