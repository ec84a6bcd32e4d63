"""The fixed steps of every method: teacher pass, student pass, objectives."""

from abc import ABCMeta, abstractmethod

import torch
from mmengine.model import BaseModel
from mmpretrain.registry import MODELS
from torch import Tensor, nn

from mim_plugins.evaluation.diagnostics import feature_statistics

from ..backbones.drop_path import draw_drop_path
from ..randomness import IterationRandomness
from .outputs import Outputs, Tokens
from .running_statistics import RunningStatistics


class MaskedDistiller(BaseModel, metaclass=ABCMeta):
    """Base of methods of the unified view ``L(N(T(x)), H(S(masked x)))``.

    A subclass says how the teacher is built and what moves after an
    optimizer step; adding an objective needs no subclass.

    Args:
        student (dict): S, the backbone that is trained.
        objectives (dict[str, dict | None]): parts of the loss by name. None
            switches a part off.
        data_preprocessor (dict, optional): ``ViewDataPreprocessor`` by
            default.

    Source: MaskDistill, eq. 1.
    """

    networks: tuple[str, ...] = ('student',)
    """Names of the networks that can be evaluated."""

    def __init__(
        self,
        student: dict,
        objectives: dict,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ):
        data_preprocessor = data_preprocessor or {}
        if isinstance(data_preprocessor, dict):
            data_preprocessor = dict(data_preprocessor)
            data_preprocessor.setdefault('type', 'ViewDataPreprocessor')
            data_preprocessor = MODELS.build(data_preprocessor)
        super().__init__(data_preprocessor, init_cfg)
        self.student = MODELS.build(student)
        self.objectives = nn.ModuleDict(
            {
                name: MODELS.build(cfg)
                for name, cfg in objectives.items()
                if cfg is not None
            }
        )
        if not self.objectives:
            raise ValueError(
                'No objective is left: model.objectives needs at least one '
                'entry that is not None.'
            )
        confusing = [name for name in self.objectives if 'loss' in name]
        if confusing:
            raise ValueError(
                f'Objectives {confusing}: every entry of the log with "loss" '
                'in its name is added to the loss. Name them otherwise in '
                'model.objectives.'
            )
        self.randomness = IterationRandomness()
        self.diagnose = False
        self.assignments: Tensor | None = None
        self._statistics: RunningStatistics | None = None

    # -- passes -----------------------------------------------------------

    @abstractmethod
    def teacher_pass(
        self, inputs: dict, groups: set[str]
    ) -> dict[str, Tokens]:
        """Tokens of unmasked views by group; no gradient is recorded."""

    def student_groups(self, inputs: dict) -> list[str]:
        """Names of the groups that the student can see."""
        return list(inputs['views'])

    def student_pass(
        self, inputs: dict, groups: set[str], whole: set[str]
    ) -> dict[str, Tokens]:
        """Tokens by group; groups with masks are seen masked.

        Args:
            inputs (dict): see :meth:`run`.
            groups: those that an objective reads.
            whole: those of which one reads every patch token. Of the others
                [CLS] and masked tokens are computed.
        """
        masks = inputs.get('masks', {})
        return {
            group: self.tokens_of(
                self.student,
                views,
                inputs['num_views'][group],
                masks[group]['mask'] if group in masks else None,
                self._index(views, masks.get(group), group in whole),
            )
            for group, views in inputs['views'].items()
            if group in groups
        }

    @staticmethod
    def _index(
        views: Tensor, mask: dict | None, whole: bool = False
    ) -> Tensor | None:
        """Flat positions of the patches that the student must compute."""
        if whole:
            return None
        if mask is None:
            return torch.empty(0, dtype=torch.long, device=views.device)
        return mask['index']

    def tokens_of(
        self,
        backbone: nn.Module,
        views: Tensor,
        num_views: int,
        mask: Tensor | None = None,
        index: Tensor | None = None,
    ) -> Tokens:
        """One forward of all views of a group (they have one size)."""
        scales = draw_drop_path(backbone, views, num_views, self.randomness)
        tokens = backbone.forward_tokens(views, mask, index, scales)
        return Tokens(tokens, num_views, backbone.grid(views), index)

    # -- training ---------------------------------------------------------

    def run(self, inputs: dict) -> Outputs:
        """Both passes; what :meth:`loss` and the objectives start from.

        Args:
            inputs (dict): as made by ``collate_views`` and normalised by
                ``ViewDataPreprocessor``.
        """
        views, num_views = inputs['views'], inputs['num_views']
        group = next(iter(views))
        masks = inputs.get('masks', {})
        seen, masked = self.student_groups(inputs), list(masks)
        for_teacher, for_student, whole = set(), set(), set()
        for objective in self.objectives.values():
            for_teacher |= objective.teacher_groups(seen, masked)
            groups = objective.student_groups(seen, masked)
            for_student |= groups
            if objective.student_patches == 'all':
                whole |= groups
        with torch.no_grad():
            teacher = self.teacher_pass(inputs, for_teacher)
        return Outputs(
            batch_size=len(views[group]) // num_views[group],
            views=views,
            student=self.student_pass(inputs, for_student, whole),
            teacher=teacher,
            masks=masks,
            boxes=inputs.get('boxes', {}),
            diagnose=self.diagnose,
        )

    def loss(self, inputs: dict, data_samples: list | None = None) -> dict:
        """The weighted parts, ``loss_<name>``, and scalars for the log."""
        if self._statistics is None:
            self._statistics = RunningStatistics(self)
        self._statistics.keep()
        outputs = self.run(inputs)
        losses, metrics = {}, {}
        for name, objective in self.objectives.items():
            outputs.metrics = {}
            losses[f'loss_{name}'] = objective.weight * objective(outputs)
            for key, value in outputs.metrics.items():
                metrics[f'{name}_{key}'] = value
        self.assignments = outputs.assignments
        if self.diagnose:
            seen = outputs.teacher or outputs.student
            features = next(iter(seen.values())).cls[: outputs.batch_size]
            metrics.update(feature_statistics(features))
        return losses | metrics

    def start_iteration(
        self,
        seed: int,
        iteration: int,
        rank: int | None = None,
        processes: int | None = None,
    ) -> None:
        """Draw what is random in the next forward passes from these.

        Args:
            seed, iteration, rank, processes: see
                :meth:`IterationRandomness.start`.
        """
        self.randomness.start(seed, iteration, rank, processes)

    def after_optimizer_step(self, halted: Tensor | None = None) -> None:
        """Move what moves once per optimizer step (centres, averages).

        Args:
            halted (Tensor, optional): bool, 0-dim, on the device: where it is
                set, everything stays as it was before the step, the running
                statistics of batch norms too.
        """
        if self._statistics is not None:
            self._statistics.settle(halted)
        for objective in self.objectives.values():
            objective.after_optimizer_step(halted)

    # -- evaluation -------------------------------------------------------

    def evaluation_backbone(self, network: str | None = None) -> nn.Module:
        """The backbone that evaluation and export use.

        Args:
            network (str, optional): one of :attr:`networks`; the method's
                default when None.
        """
        if network not in (None, *self.networks):
            raise ValueError(
                f"network='{network}': {type(self).__name__} has no such "
                f'network; use one of {list(self.networks)}.'
            )
        return self.student

    def extract_feat(
        self, inputs: Tensor, network: str | None = None
    ) -> Tensor:
        """Features for evaluation: the normed [CLS] token.

        Args:
            inputs (Tensor): ``(B, C, H, W)``, normalised.
            network (str, optional): ``'teacher'`` or ``'student'``; the
                method's default when None.

        Returns:
            Tensor: ``(B, D)``.
        """
        return self.evaluation_backbone(network).forward_tokens(inputs)[:, 0]

    def forward(
        self,
        inputs: dict | Tensor,
        data_samples: list | None = None,
        mode: str = 'tensor',
    ):
        """``mode='loss'`` for training, ``'tensor'`` for features."""
        if mode == 'loss':
            return self.loss(inputs, data_samples)
        if mode == 'tensor':
            return self.extract_feat(inputs)
        raise ValueError(
            f"mode='{mode}' is not known: pre-training has 'loss' and "
            "'tensor'. k-NN evaluation runs through the KNNLoop."
        )
