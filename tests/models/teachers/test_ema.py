"""The teacher as a moving average of backbone and head."""

import pytest
import torch
from mmpretrain.registry import MODELS
from toy_ibot import WIDTH, head_config, student_config

from mim_plugins.models import EMATeacher


def build(head=None, teacher_head=None, student=None, momentum=0.75):
    """A teacher, and the student's backbone and head."""
    student = student_config(**(student or {}))
    head = head_config(in_dim=WIDTH, **(head or {}))
    teacher = MODELS.build(
        {
            'type': 'EMATeacher',
            'student': student,
            'head': head,
            'head_overrides': teacher_head,
            'momentum': momentum,
        }
    )
    return teacher, MODELS.build(student), MODELS.build(head)


def fill(module, value):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)


def values(module):
    return {
        name: set(parameter.flatten().tolist())
        for name, parameter in module.named_parameters()
    }


@pytest.mark.parametrize('share', ['all', 'mlp', 'layers', 'none'])
def test_it_starts_as_the_student_and_is_not_trained(share):
    teacher, backbone, head = build({'share': share})
    teacher.copy_from(backbone, head)
    for mine, theirs in ((teacher.backbone, backbone), (teacher.head, head)):
        state = theirs.state_dict()
        for name, value in mine.state_dict().items():
            assert torch.equal(value, state[name]), name
    assert not any(p.requires_grad for p in teacher.parameters())
    shared = {p.data_ptr() for p in backbone.parameters()}
    assert not any(p.data_ptr() in shared for p in teacher.parameters())


@pytest.mark.parametrize('share', ['mlp', 'layers', 'none'])
def test_a_shared_head_starts_at_the_layers_for_patches(share):
    """And then follows those for [CLS]: the official code does both."""
    teacher, backbone, head = build({'share': share}, {'share': 'all'})
    teacher.copy_from(backbone, head)
    assert torch.equal(
        teacher.head.last_layer.weight, head.patch_last_layer.weight
    )
    own = getattr(head, 'patch_mlp', head.mlp)
    assert torch.equal(teacher.head.mlp[4].weight, own[4].weight)
    fill(teacher, 0.0)
    fill(head, 8.0)  # patches
    for part in (head.mlp, head.last_layer):
        fill(part, 4.0)
    teacher.update(backbone, head)
    assert set(map(frozenset, values(teacher.head).values())) == {
        frozenset({1.0})
    }


@pytest.mark.parametrize('share', ['all', 'mlp', 'layers', 'none'])
def test_every_parameter_follows(share):
    teacher, backbone, head = build({'share': share})
    fill(teacher, 0.0)
    fill(backbone, 4.0)
    fill(head, 8.0)
    teacher.update(backbone, head)
    assert all(v == {1.0} for v in values(teacher.backbone).values())
    assert all(v == {2.0} for v in values(teacher.head).values())


def test_layers_that_only_the_student_shares_follow_by_all_their_names():
    teacher, backbone, head = build({'share': 'layers'}, {'share': 'none'})
    teacher.copy_from(backbone, head)
    fill(teacher, 0.0)
    fill(head, 4.0)
    teacher.update(backbone, head)
    assert values(teacher.head)['patch_mlp.0.weight'] == {1.0}
    assert all(v == {1.0} for v in values(teacher.head).values())


def test_running_statistics_are_the_teachers_own():
    teacher, backbone, head = build({'norm': 'bn'})
    teacher.copy_from(backbone, head)
    head.train()(torch.randn(6, WIDTH) + 3)
    before = {k: v.clone() for k, v in teacher.head.named_buffers()}
    assert before
    teacher.update(backbone, head)
    for name, buffer in teacher.head.named_buffers():
        assert torch.equal(buffer, before[name])
        assert not torch.equal(buffer, dict(head.named_buffers())[name])


def test_it_has_neither_mask_token_nor_stochastic_depth():
    teacher, backbone, _ = build(student={'drop_path_rate': 0.5})
    names = dict(teacher.backbone.named_parameters())
    assert set(dict(backbone.named_parameters())) - set(names) == {
        'mask_token'
    }
    rates = [
        module.drop_prob
        for module in teacher.modules()
        if type(module).__name__ == 'DropPath'
    ]
    assert not any(rates)


def test_a_student_without_head():
    student = student_config()
    teacher = EMATeacher(student, momentum=0.5)
    backbone = MODELS.build(student)
    fill(teacher, 0.0)
    fill(backbone, 4.0)
    teacher.update(backbone, None)
    assert all(v == {2.0} for v in values(teacher).values())


def test_another_architecture_is_named():
    teacher, backbone, _ = build(teacher_head={'share': 'none'})
    head = MODELS.build(head_config(in_dim=WIDTH))
    with pytest.raises(ValueError, match=r'patch_mlp.*one architecture'):
        teacher.copy_from(backbone, head)
