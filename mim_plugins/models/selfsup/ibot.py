"""iBOT: image BERT pre-training with an online tokenizer."""

from mmpretrain.registry import MODELS
from torch import Tensor, nn

from .base import MaskedDistiller
from .outputs import Outputs, Tokens


@MODELS.register_module()
class IBOT(MaskedDistiller):
    """Self-distillation of [CLS] across views and of masked patches.

    Args:
        student (dict): backbone, e.g. ``MaskedVisionTransformer``.
        head (dict): projection head, e.g. ``IBOTHead``; its ``in_dim`` is
            the width of the backbone unless given.
        teacher (dict, optional): ``EMATeacher`` by default. ``head`` in it
            holds what differs from the student's head, e.g.
            ``dict(share='all')``.
        objectives (dict): ``cls`` and ``patch`` as a rule; normalizations
            without a ``dim`` get the head's number of prototypes.
        unmasked_global (bool): whether the student sees the global crops
            without masks too, as the group ``'global_unmasked'`` (variant
            (d) of the multi-crop figure).
        evaluation_network (str): ``'teacher'`` or ``'student'``.

    Source: iBOT (Zhou et al., 2022), Sec. 3 and Appendix A.
    """

    networks = ('teacher', 'student')

    def __init__(
        self,
        student: dict,
        head: dict,
        objectives: dict,
        teacher: dict | None = None,
        unmasked_global: bool = False,
        evaluation_network: str = 'teacher',
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ):
        head = dict(head)
        head.setdefault('out_dim', 8192)
        objectives = {
            name: None if cfg is None else _with_dim(cfg, head)
            for name, cfg in objectives.items()
        }
        super().__init__(student, objectives, data_preprocessor, init_cfg)
        head.setdefault('in_dim', self.student.embed_dims)
        self.head = MODELS.build(head)
        teacher = dict(teacher or {})
        teacher.setdefault('type', 'EMATeacher')
        overrides = teacher.pop('head', None)
        self.teacher = MODELS.build(
            dict(
                teacher,
                student=dict(student),
                head=head,
                head_overrides=overrides,
            )
        )
        self.unmasked_global = unmasked_global
        self.evaluation_network = evaluation_network
        self.evaluation_backbone()
        self.teacher.copy_from(self.student, self.head)

    def init_weights(self) -> None:
        """Draw the student's weights; the teacher starts as its copy."""
        super().init_weights()
        self.teacher.copy_from(self.student, self.head)

    def teacher_pass(
        self, inputs: dict, groups: set[str]
    ) -> dict[str, Tokens]:
        return {
            group: self.tokens_of(
                self.teacher.backbone, views, inputs['num_views'][group]
            )
            for group, views in inputs['views'].items()
            if group in groups
        }

    def student_groups(self, inputs: dict) -> list[str]:
        groups = super().student_groups(inputs)
        if self.unmasked_global and 'global' in groups:
            groups.append('global_unmasked')
        return groups

    def student_pass(
        self, inputs: dict, groups: set[str], whole: set[str]
    ) -> dict[str, Tokens]:
        outputs = super().student_pass(inputs, groups, whole)
        if 'global_unmasked' in groups:
            views = inputs['views']['global']
            outputs['global_unmasked'] = self.tokens_of(
                self.student,
                views,
                inputs['num_views']['global'],
                index=self._index(views, None, 'global_unmasked' in whole),
            )
        return outputs

    def run(self, inputs: dict) -> Outputs:
        outputs = super().run(inputs)
        outputs.student_head = self.head
        outputs.teacher_head = self.teacher.head
        return outputs

    def after_optimizer_step(self, halted: Tensor | None = None) -> None:
        """Move the teacher, then the centres."""
        self.teacher.update(self.student, self.head, halted)
        super().after_optimizer_step(halted)

    def evaluation_backbone(self, network: str | None = None) -> nn.Module:
        network = network or self.evaluation_network
        student = super().evaluation_backbone(network)
        return self.teacher.backbone if network == 'teacher' else student


def _with_dim(objective: dict, head: dict) -> dict:
    """Give a normalization the number of prototypes that it acts on."""
    objective = dict(objective)
    normalization = objective.get('normalization')
    if isinstance(normalization, dict) and 'dim' not in normalization:
        kind = objective['type']
        kind = MODELS.get(kind) if isinstance(kind, str) else kind
        dim = head['out_dim']
        if getattr(kind, 'tokens', 'patch') == 'patch':
            dim = head.get('patch_out_dim') or dim
        objective['normalization'] = dict(normalization, dim=dim)
    return objective
