"""A teacher that is the moving average of the student."""

import torch
from mmengine.model import BaseModule
from mmpretrain.registry import MODELS
from torch import Tensor, nn

from .ema_update import common_names, ema_update


@MODELS.register_module()
class EMATeacher(BaseModule):
    """Copy of student and head that follows them slowly.

    Parameters are averaged by name; what only the student has (the mask
    token, a second layer of prototypes) is left out, and buffers are the
    teacher's own.

    Args:
        student (dict): config of the student's backbone.
        head (dict, optional): config of the student's head.
        momentum (float): share of the old teacher that stays, in [0, 1];
            usually set by a schedule.
        head_overrides (dict, optional): what differs in the teacher's head,
            e.g. ``dict(share='all')``.

    Source: iBOT, Sec. 3.1; the official code for names and first values.
    """

    def __init__(
        self,
        student: dict,
        head: dict | None = None,
        momentum: float = 0.996,
        head_overrides: dict | None = None,
    ):
        super().__init__()
        self.momentum = momentum
        # no file of its own: it starts as a copy of the student
        backbone = dict(
            student, mask_token=False, drop_path_rate=0.0, init_cfg=None
        )
        self.backbone = MODELS.build(backbone)
        self.head = None
        if head is not None:
            self.head = MODELS.build(dict(head, **(head_overrides or {})))
        self.requires_grad_(False)

    @torch.no_grad()
    def copy_from(self, backbone: nn.Module, head: nn.Module | None) -> None:
        """Start at the student's values.

        Where the student has two layers of prototypes (or MLPs) and the
        teacher one, the teacher's starts at the student's layer for patches,
        as in the official code, though it follows the one for [CLS].
        """
        self._load(self.backbone, backbone.state_dict())
        if self.head is None:
            return
        state = head.state_dict()
        own = self.head.state_dict()
        for name in list(state):
            twin = name.replace('patch_', '', 1)
            if name.startswith('patch_') and name not in own:
                state[twin] = state[name]
        self._load(self.head, state)

    @staticmethod
    def _load(module: nn.Module, state: dict[str, Tensor]) -> None:
        missing = module.load_state_dict(state, strict=False).missing_keys
        if missing:
            raise ValueError(
                f'The student has no value for {missing} of the teacher: '
                'teacher and student must be of one architecture.'
            )

    @torch.no_grad()
    def update(
        self,
        backbone: nn.Module,
        head: nn.Module | None,
        halted: Tensor | None = None,
    ) -> None:
        """One step of the average towards the student.

        Args:
            backbone, head: the student's.
            halted (Tensor, optional): bool, 0-dim: where it is set, the
                teacher stays as it is.
        """
        pairs = [(self.backbone, backbone)]
        if self.head is not None:
            pairs.append((self.head, head))
        teacher_params, student_params = [], []
        for mine, theirs in pairs:
            own = dict(mine.named_parameters())
            # a layer that the student shares goes by all of its names
            other = dict(theirs.named_parameters(remove_duplicate=False))
            for name in common_names(own, other):
                teacher_params.append(own[name])
                student_params.append(other[name])
        ema_update(teacher_params, student_params, self.momentum, halted)
