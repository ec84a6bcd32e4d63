"""Names, groups and first values of the real model (``ibot_optim.npz``)."""

import pytest
import torch
from golden_files import golden
from mmpretrain.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS

import mim_plugins  # noqa: F401
from mim_plugins.checkpoints import (
    ours_to_ibot_backbone,
    ours_to_ibot_head,
)

Z = golden('ibot_optim')
CASES = Z.cases('code')


def shapes_of(case: str) -> dict[str, tuple[int, ...]]:
    return {
        str(name): tuple(int(n) for n in str(shape).split('x'))
        for name, shape in zip(Z[f'{case}/names'], Z[f'{case}/shapes'])
    }


def codes_of(case: str) -> dict[str, int]:
    names = [str(name) for name in Z[f'{case}/names']]
    return dict(zip(names, Z[f'{case}/code'].tolist()))


def build(case: str, teacher_share: str = 'all'):
    """The model of a case, its sizes read from the shapes in the file."""
    shapes = shapes_of(case)
    width, _, *patch = shapes['backbone.patch_embed.proj.weight']
    side = round((shapes['backbone.pos_embed'][1] - 1) ** 0.5)
    blocks = {n.split('.')[2] for n in shapes if n.startswith('backbone.bl')}
    layers = [
        shape
        for name, shape in shapes.items()
        if name.startswith('head.mlp.') and name.endswith('weight')
    ]
    separate = 'head.last_layer2.weight_v' in shapes
    last = 'head.last_layer2' if separate else 'head.last_layer'
    target = {'type': 'CentreSharpen'}
    return MODELS.build(
        {
            'type': 'IBOT',
            'student': {
                'type': 'MaskedVisionTransformer',
                'arch': {
                    'embed_dims': width,
                    'num_layers': len(blocks),
                    'num_heads': 1,
                    'feedforward_channels': shapes[
                        'backbone.blocks.0.mlp.fc1.weight'
                    ][0],
                },
                'img_size': (side * patch[0], side * patch[1]),
                'patch_size': tuple(patch),
            },
            'head': {
                'type': 'IBOTHead',
                'out_dim': shapes['head.last_layer.weight_v'][0],
                'patch_out_dim': shapes[f'{last}.weight_v'][0],
                'num_layers': len(layers),
                'hidden_dim': layers[0][0],
                'bottleneck_dim': layers[-1][0],
                'share': 'mlp' if separate else 'all',
                'norm_last_layer': codes_of(case)['head.last_layer.weight_g']
                == -1,
            },
            'teacher': {'head': {'share': teacher_share}},
            'objectives': {
                'cls': {'type': 'ClsDistillation', 'normalization': target},
                'patch': {
                    'type': 'MaskedPatchDistillation',
                    'normalization': target,
                },
            },
        }
    )


def official_names(backbone, head) -> dict[str, torch.Tensor]:
    """Parameters by the names of the official code."""
    parts = {
        'backbone': ours_to_ibot_backbone(dict(backbone.named_parameters())),
        'head': ours_to_ibot_head(
            dict(head.named_parameters()), patch_names=False
        ),
    }
    return {
        f'{part}.{name}': value
        for part, values in parts.items()
        for name, value in values.items()
    }


@pytest.mark.parametrize('case', CASES)
def test_student_has_the_official_parameters(case):
    model = build(case)
    ours = official_names(model.student, model.head)
    assert {n: tuple(p.shape) for n, p in ours.items()} == shapes_of(case)


@pytest.mark.parametrize('case', CASES)
def test_weight_decay_groups_of_the_model(case):
    model = build(case)
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(
        {
            'type': 'PretrainOptimConstructor',
            'optim_wrapper_cfg': {
                'type': 'PretrainOptimWrapper',
                'optimizer': {'type': 'AdamW', 'lr': 0.1, 'weight_decay': 0.5},
            },
        }
    )
    groups = constructor(model).optimizer.param_groups
    decay = {0.5: 1, 0.0: 0}
    # by storage: the mask token has another shape in the official code
    found = {
        parameter.data_ptr(): decay[group['weight_decay']]
        for group in groups
        for parameter in group['params']
    }
    ours = official_names(model.student, model.head)
    codes = {n: found.pop(p.data_ptr(), -1) for n, p in ours.items()}
    assert codes == codes_of(case)
    assert not found, 'something that is not of the student is trained'


def test_names_of_the_moving_average_in_the_model():
    model = build(CASES[0])
    student = official_names(model.student, model.head)
    teacher = official_names(model.teacher.backbone, model.teacher.head)
    assert set(teacher) == {str(n) for n in Z['ema/names_common']}
    rest = set(student) - set(teacher)
    assert rest == {str(n) for n in Z['ema/names_student_only']}

    model.teacher.momentum = 0.25
    with torch.no_grad():
        for value in teacher.values():
            value.fill_(2.0)
        for value in (*model.student.parameters(), *model.head.parameters()):
            value.fill_(4.0)
    model.after_optimizer_step()
    for name, value in teacher.items():
        assert (value == 3.5).all(), name
    for name, value in student.items():
        assert (value == 4.0).all(), name


def test_first_values_of_a_shared_teacher_head():
    model = build(CASES[0])
    teacher = model.teacher.head.last_layer.weight
    for layer, key in (
        (model.head.last_layer, 'equals_student_cls_last_layer'),
        (model.head.patch_last_layer, 'equals_student_patch_last_layer'),
    ):
        expected = bool(Z[f'teacher_init/{key}'])
        assert torch.equal(teacher, layer.weight) == expected, key
