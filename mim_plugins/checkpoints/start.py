"""Weights that a pre-training starts from, out of any checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from .convert import has_both, whole_state
from .errors import CheckpointError
from .keymaps import State
from .layouts import find_backbone

BACKBONES = ('student.', 'teacher.backbone.')


@dataclass
class Start:
    """Weights for a pre-training, and what they leave open.

    Attributes:
        state (dict[str, Tensor]): in the names of the model.
        content (str): what the file held, in words.
        kept (list[str]): weights of the model that the file has not; they
            keep their start values.
        unused (list[str]): entries and keys of the file that the model has
            no place for.
    """

    state: State
    content: str
    kept: list[str]
    unused: list[str]

    def __str__(self) -> str:
        text = f'{self.content}, {len(self.state)} weights'
        for words, keys in (
            ('not in the file, start values stay', self.kept),
            ('in the file, not used', self.unused),
        ):
            if keys:
                text += f'; {words}: {", ".join(keys)}'
        return f'{text}.'


def start_from(
    checkpoint: Mapping, model: Mapping[str, Tensor], source: str
) -> Start:
    """Fit a checkpoint to the state dict of a pre-training model.

    A file with teacher and student (this project's, official iBOT's or
    DINO's) gives backbones, heads and centres. Any other backbone (also
    MAE's, timm's and Hugging Face's) goes into student and teacher, whose
    heads keep their start values.

    Args:
        checkpoint (Mapping): from :func:`load_file`.
        model (Mapping[str, Tensor]): state dict of the model.
        source (str): how errors name the file.

    Raises:
        CheckpointError: the file has no backbone, or nothing that fits.
    """
    unused: list[str] = []
    if has_both(checkpoint):
        content = 'teacher and student'
        state = whole_state(checkpoint, unused)
    else:
        found = _one_backbone(checkpoint, source)
        content = 'one backbone, for student and teacher'
        targets = [
            prefix
            for prefix in BACKBONES
            if any(name.startswith(prefix) for name in model)
        ]
        state = {
            f'{prefix}{name}': value
            for prefix in targets
            for name, value in found.state.items()
            # a teacher has no mask token
            if name != 'mask_token' or f'{prefix}{name}' in model
        }
        unused += found.left_out + found.unplaced
    unused += [name for name in state if name not in model]
    state = {name: value for name, value in state.items() if name in model}
    if not state:
        raise CheckpointError(
            f'{source} has no weight that this model has. Its first keys: '
            f'{", ".join(unused[:5])}.'
        )
    kept = [name for name in model if name not in state]
    return Start(state, content, kept, unused)


def _one_backbone(checkpoint: Mapping, source: str):
    try:
        return find_backbone(checkpoint, 'teacher', source)
    except CheckpointError:
        only_student = isinstance(checkpoint.get('student'), Mapping) or any(
            str(key).startswith('student.')
            for key in checkpoint.get('state_dict', checkpoint)
        )
        if not only_student:
            raise
        return find_backbone(checkpoint, 'student', source)
