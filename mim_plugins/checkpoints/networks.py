"""Whole pre-training files: official iBOT's layout and this project's."""

from collections.abc import Callable, Mapping

from torch import Tensor

from .errors import CheckpointError
from .keymaps import (
    State,
    ibot_backbone_to_ours,
    ibot_head_to_ours,
    ours_to_ibot_backbone,
    ours_to_ibot_head,
    strip_prefix,
    strip_wrappers,
)

# (network, part) of an official file -> where it is in our state dict
_PARTS = {
    ('student', 'backbone.'): 'student.',
    ('student', 'head.'): 'head.',
    ('teacher', 'backbone.'): 'teacher.backbone.',
    ('teacher', 'head.'): 'teacher.head.',
}
_CENTRES = {
    'center': ('objectives.cls.normalization.centre', (1, -1)),
    'center2': ('objectives.patch.normalization.centre', (1, 1, -1)),
}


def ibot_to_ours(
    checkpoint: Mapping, unplaced: list[str] | None = None
) -> State:
    """State dict of ``IBOT`` from an official iBOT or DINO training file.

    Args:
        checkpoint (Mapping): ``student``, ``teacher`` and ``ibot_loss`` (or
            ``dino_loss``); optimizer, epoch and arguments have no place in a
            state dict.
        unplaced (list[str], optional): receives the names that have no
            place, as paths such as ``teacher.backbone.fc_norm.weight``, and
            the other entries of the file.

    Returns:
        dict[str, Tensor]: ``student.*``, ``head.*``, ``teacher.backbone.*``,
        ``teacher.head.*`` and the centres.

    Raises:
        CheckpointError: if the file has neither network, or (with
            ``unplaced=None``) if a key of a network has no place.
    """
    networks = [n for n in ('student', 'teacher') if n in checkpoint]
    if not networks:
        raise CheckpointError(
            'This is no iBOT pre-training file: it has neither a student '
            f'nor a teacher, but {", ".join(map(str, checkpoint))}.'
        )
    state: State = {}
    for network in networks:
        source = strip_wrappers(checkpoint[network])
        for (owner, part), target in _PARTS.items():
            if owner != network:
                continue
            rename = (
                ibot_backbone_to_ours
                if part == 'backbone.'
                else ibot_head_to_ours
            )
            piece = strip_prefix(source, part)
            renamed = _renamed(rename, piece, f'{network}.{part}', unplaced)
            state.update({f'{target}{k}': v for k, v in renamed.items()})
        known = ('backbone.', 'head.')
        rest = [k for k in source if not k.startswith(known)]
        _note([f'{network}.{k}' for k in rest], unplaced)
    losses = [k for k in ('ibot_loss', 'dino_loss') if k in checkpoint]
    loss = checkpoint[losses[0]] if losses else {}
    for theirs, value in loss.items():
        if theirs in _CENTRES:
            state[_CENTRES[theirs][0]] = value.reshape(-1)
        else:
            _note([f'{losses[0]}.{theirs}'], unplaced)
    if unplaced is not None:
        taken = (*networks, *losses)
        unplaced.extend(str(k) for k in checkpoint if k not in taken)
    return state


def ours_to_ibot(
    state: Mapping[str, Tensor], unplaced: list[str] | None = None
) -> dict[str, State]:
    """Official iBOT layout of our state dict.

    Args:
        state (Mapping[str, Tensor]): state dict of ``IBOT``.
        unplaced (list[str], optional): receives the names that have no
            place there.

    Returns:
        dict: ``student`` (names start with ``module.``, as saved from DDP),
        ``teacher`` and ``ibot_loss``.

    Raises:
        CheckpointError: if a name has no place and ``unplaced`` is None.
    """
    official: dict[str, State] = {'student': {}, 'teacher': {}}
    placed = set()
    for (network, part), source in _PARTS.items():
        piece = strip_prefix(state, source)
        placed.update(f'{source}{k}' for k in piece)
        if not piece:
            continue
        rename = (
            ours_to_ibot_backbone if part == 'backbone.' else ours_to_ibot_head
        )
        wrapper = 'module.' if network == 'student' else ''
        renamed = _renamed(rename, piece, source, unplaced)
        official[network].update(
            {f'{wrapper}{part}{k}': v for k, v in renamed.items()}
        )
    centres = {}
    for theirs, (ours, shape) in _CENTRES.items():
        if ours in state:
            centres[theirs] = state[ours].reshape(shape)
            placed.add(ours)
    if centres:
        official['ibot_loss'] = centres
    _note([k for k in state if k not in placed], unplaced)
    return official


def _renamed(
    rename: Callable, piece: State, path: str, unplaced: list[str] | None
) -> State:
    unknown: list[str] = []
    renamed = rename(piece, unknown)
    _note([f'{path}{name}' for name in unknown], unplaced)
    return renamed


def _note(names: list[str], unplaced: list[str] | None) -> None:
    if unplaced is not None:
        unplaced.extend(names)
    elif names:
        raise CheckpointError(
            f'{len(names)} keys have no place: {", ".join(names)}. Pass a '
            'list as `unplaced` to go on without them.'
        )
