"""[CLS] tokens across views: who predicts whom, and what is logged."""

import pytest
import torch
from toy_ibot import build_ibot, make_batch, objective_configs

from mim_plugins.testing.literal_ibot import Settings, cls_loss

MASKED_TOO = ('global', 'global_unmasked', 'local')


def build(**changes):
    """An iBOT with the [CLS] objective only."""
    others = {
        k: changes.pop(k) for k in ('unmasked_global', 'head') if k in changes
    }
    cls = dict(objective_configs()['cls'], **changes)
    objectives = objective_configs(cls=cls, patch=None)
    return build_ibot(objectives=objectives, **others)


def logits(model, inputs, group, masked=False, teacher=False):
    """Logits of the [CLS] tokens of one group, a tensor for each view."""
    views = inputs['views'][group]
    mask = inputs['masks'][group]['mask'] if masked else None
    network = model.teacher if teacher else None
    backbone = network.backbone if teacher else model.student
    tokens = backbone.forward_tokens(views, mask)[:, 0]
    head = network.head if teacher else model.head
    return list(head.forward_cls(tokens).chunk(inputs['num_views'][group]))


def test_groups_of_the_same_crops_do_not_predict_themselves():
    """Masked, unmasked and local views; pairs of one crop are left out."""
    model = build(student_groups=MASKED_TOO, unmasked_global=True)
    inputs = make_batch()
    student = {
        'masked': logits(model, inputs, 'global', masked=True),
        'unmasked': logits(model, inputs, 'global'),
        'local': logits(model, inputs, 'local'),
    }
    teacher = logits(model, inputs, 'global', teacher=True)
    centre = model.objectives['cls'].normalization.centre
    terms, pairs = 0.0, 0
    for group, views in student.items():
        own = range(2) if group != 'local' else (-1, -1)
        for q, of_teacher in enumerate(teacher):
            for view, source in zip(views, own):
                if source == q:
                    continue
                # a single pair: the literal loss leaves out view q = 0
                terms += cls_loss(
                    [view.detach(), view], [of_teacher], centre, Settings()
                )
                pairs += 1
    assert pairs == 2 + 2 + 4
    got = model(inputs, mode='loss')['loss_cls']
    torch.testing.assert_close(got, terms / pairs)


def test_unmasked_crops_alone_are_the_teachers_crops():
    groups = ('global_unmasked', 'local')
    model = build(student_groups=groups, unmasked_global=True)
    inputs = make_batch()
    views = logits(model, inputs, 'global') + logits(model, inputs, 'local')
    teacher = logits(model, inputs, 'global', teacher=True)
    centre = model.objectives['cls'].normalization.centre
    want = cls_loss(views, teacher, centre, Settings())
    torch.testing.assert_close(model(inputs, mode='loss')['loss_cls'], want)


def test_assignments_are_the_teachers_of_the_first_view():
    model, inputs = build(head={'out_dim': 40}), make_batch(batch=8)
    for parameter in model.teacher.parameters():
        parameter.mul_(4)  # so that [CLS] depends on the picture
    model(inputs, mode='loss')
    first, second = logits(model, inputs, 'global', teacher=True)
    assert not torch.equal(first.argmax(-1), second.argmax(-1))
    assert torch.equal(model.assignments, first.argmax(-1))


def test_entropy_and_kl_are_apart():
    model, inputs = build(), make_batch()
    model.diagnose = True
    parts = model(inputs, mode='loss')
    teacher = torch.cat(logits(model, inputs, 'global', teacher=True))
    target = model.objectives['cls'].normalization(teacher)
    entropy = -(target * target.log()).sum(-1).mean()
    torch.testing.assert_close(parts['cls_target_entropy'], entropy)
    torch.testing.assert_close(
        parts['cls_kl'], parts['loss_cls'].detach() - entropy
    )
    used = len(target.argmax(-1).unique()) / target.shape[-1]
    assert parts['cls_prototypes_used'] == pytest.approx(used)
    assert not parts['cls_kl'].requires_grad


def test_the_weight_of_an_objective():
    model, inputs = build(), make_batch()
    full = model(inputs, mode='loss')['loss_cls']
    model.objectives['cls'].weight = 0.25
    quarter = model(inputs, mode='loss')['loss_cls']
    torch.testing.assert_close(quarter, 0.25 * full)


@pytest.mark.parametrize(
    ('model', 'batch', 'sentence'),
    [
        (
            {'student_groups': ('global_unmasked', 'local')},
            {},
            "needs views of the group 'global_unmasked'.*unmasked_global=True",
        ),
        ({}, {'views': 0}, "needs views of the group 'global'.*group='glob"),
        ({}, {'views': 1, 'local': 0}, 'the batch has one'),
    ],
)
def test_missing_views_are_named(model, batch, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**model)(make_batch(**{'ratio': None, **batch}), mode='loss')


def test_one_global_view_predicts_from_local_views():
    loss = build()(make_batch(views=1, ratio=None), mode='loss')['loss_cls']
    assert loss > 0
