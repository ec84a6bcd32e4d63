"""iBOT as a whole: the fast path, its variants, and its state."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_ibot import (
    build_ibot,
    gradients,
    head_config,
    make_batch,
    total_loss,
)

from mim_plugins.testing.literal_ibot import Settings, ibot_step

CASES = st.fixed_dictionaries(
    dict(
        batch=st.integers(1, 4),
        local=st.integers(0, 3),
        grid=st.sampled_from([(3, 3), (2, 4), (1, 5)]),
        ratio=st.sampled_from([0.0, 0.3, 0.9]),
        padding=st.integers(0, 5),
    )
)


@settings(max_examples=30)
@given(
    case=CASES,
    share=st.sampled_from(['all', 'mlp', 'layers', 'none']),
    sizes=st.sampled_from([(4, None), (11, 6)]),
    norm_last_layer=st.booleans(),
    temperature=st.sampled_from([0.04, 0.1]),
    weight=st.sampled_from([0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_fast_path_equals_the_literal_one(
    case, share, sizes, norm_last_layer, temperature, weight, seed
):
    torch.manual_seed(seed)
    model = build_ibot(
        head=dict(
            share=share,
            out_dim=sizes[0],
            patch_out_dim=None if share == 'all' else sizes[1],
            norm_last_layer=norm_last_layer,
        )
    )
    objectives = model.objectives
    objectives['cls'].normalization.temperature = temperature
    objectives['patch'].normalization.temperature = temperature / 2
    objectives['patch'].normalization.momentum = 0.6
    objectives['patch'].weight = weight
    inputs = make_batch(**case)
    literal = ibot_step(
        model,
        inputs,
        Settings(
            teacher_temp=temperature,
            teacher_patch_temp=temperature / 2,
            patch_weight=weight,
            patch_centre_momentum=0.6,
        ),
    )
    total_loss(literal).backward()
    want = gradients(model)
    model.zero_grad()

    parts = model(inputs, mode='loss')
    total_loss(parts).backward()
    got = gradients(model)
    close = dict(rtol=1e-9, atol=1e-11)
    for name in ('loss_cls', 'loss_patch'):
        torch.testing.assert_close(parts[name], literal[name], **close)
    for name, value in got.items():
        expected = want.get(name, torch.zeros_like(value))
        torch.testing.assert_close(value, expected, **close, msg=name)
    assert set(want) <= set(got)
    model.after_optimizer_step()
    for name in ('cls', 'patch'):
        torch.testing.assert_close(
            objectives[name].normalization.centre,
            literal[f'{name}_centre'],
            **close,
        )


def test_all_that_is_trained_gets_a_gradient():
    for share in ('all', 'mlp', 'layers', 'none'):
        model = build_ibot(head=dict(share=share))
        # the first epochs of a delayed start have empty masks
        total_loss(model(make_batch(ratio=0.0), mode='loss')).backward()
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        assert set(gradients(model)) == trained


def test_order_of_the_images_changes_nothing():
    model = build_ibot()
    inputs = make_batch(batch=4, local=1, padding=0)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = copy.deepcopy(inputs)
    for group, views in inputs['views'].items():
        shuffled['views'][group] = views.unflatten(0, (-1, 4))[
            :, order
        ].flatten(0, 1)
    mask = inputs['masks']['global']
    moved = mask['mask'].unflatten(0, (-1, 4))[:, order].flatten(0, 1)
    share = moved.double() / moved.sum(1, keepdim=True).clamp(min=1)
    shuffled['masks']['global'].update(
        mask=moved,
        index=moved.flatten().nonzero().flatten(),
        weight=share[moved],
    )
    first, second = (model(x, mode='loss') for x in (inputs, shuffled))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value)


def test_accumulated_batches_move_teacher_and_centres_once():
    model = build_ibot()
    centre = model.objectives['patch'].normalization.centre
    before = centre.clone()
    batches = [make_batch(batch=2), make_batch(batch=2)]
    means = []
    for inputs in batches:
        model(inputs, mode='loss')
        tokens = model.teacher.backbone.forward_tokens(
            inputs['views']['global']
        )
        means.append(model.teacher.head(tokens)[1].flatten(0, 1).mean(0))
        assert torch.equal(centre, before)
    model.after_optimizer_step()
    expected = 0.9 * before + 0.1 * torch.stack(means).mean(0)
    torch.testing.assert_close(centre, expected)


def test_teacher_follows_by_its_momentum_and_gets_no_gradient():
    model = build_ibot()
    model.teacher.momentum = 0.8
    old = {
        k: v.clone() for k, v in model.teacher.backbone.state_dict().items()
    }
    total_loss(model(make_batch(), mode='loss')).backward()
    assert all(p.grad is None for p in model.teacher.parameters())
    model.after_optimizer_step()
    student = model.student.state_dict()
    for name, value in model.teacher.backbone.state_dict().items():
        expected = 0.8 * old[name] + 0.2 * student[name]
        torch.testing.assert_close(value, expected)


def test_bf16_gives_finite_float32_losses():
    model = build_ibot(dtype=torch.float32)
    model.diagnose = True
    inputs = make_batch(dtype=torch.float32)
    exact = model(inputs, mode='loss')
    with torch.autocast('cpu', dtype=torch.bfloat16):
        parts = model(inputs, mode='loss')
    for value in parts.values():
        assert value.dtype == torch.float32 and torch.isfinite(value)
    for name in ('loss_cls', 'loss_patch'):
        torch.testing.assert_close(parts[name], exact[name], rtol=0.1, atol=0)
    total_loss(parts).backward()
    assert all(g.isfinite().all() for g in gradients(model).values())
    model.after_optimizer_step()
    for objective in model.objectives.values():
        assert objective.normalization.centre.dtype == torch.float32


def test_features_are_those_of_the_named_network():
    model = build_ibot().eval()
    images = make_batch()['views']['global']
    teacher = model.teacher.backbone.forward_tokens(images)[:, 0]
    student = model.student.forward_tokens(images)[:, 0]
    assert torch.equal(model(images), teacher)
    assert torch.equal(model.extract_feat(images, network='student'), student)
    assert not torch.allclose(teacher, student)
    with pytest.raises(ValueError, match=r"'other'.*\['teacher', 'student'\]"):
        model.extract_feat(images, network='other')
    with pytest.raises(ValueError, match="network='none'"):
        build_ibot(evaluation_network='none')
    model.evaluation_network = 'student'
    assert torch.equal(model(images), student)
    with pytest.raises(ValueError, match="mode='predict' is not known"):
        model(images, mode='predict')


def test_stochastic_depth_is_the_students_alone():
    model = build_ibot(student=dict(drop_path_rate=0.9)).train()
    images = make_batch(batch=8)['views']['global']
    backbone = model.teacher.backbone
    assert torch.equal(
        backbone.forward_tokens(images), backbone.forward_tokens(images)
    )
    assert not torch.equal(
        model.student.forward_tokens(images),
        model.student.forward_tokens(images),
    )


def test_weights_initialise_the_teacher_as_a_copy():
    model = build_ibot()
    model.init_weights()
    student = model.student.state_dict()
    for name, value in model.teacher.backbone.state_dict().items():
        assert torch.equal(value, student[name]), name
    assert 'mask_token' not in model.teacher.backbone.state_dict()


def test_state_survives_saving_and_copying(tmp_path):
    model = build_ibot(head=head_config(share='mlp'))
    model(make_batch(), mode='loss')
    model.after_optimizer_step()
    torch.save(model.state_dict(), tmp_path / 'model.pth')
    other = build_ibot(head=head_config(share='mlp'))
    other.load_state_dict(torch.load(tmp_path / 'model.pth'))
    inputs = make_batch()
    want = model(inputs, mode='loss')
    for twin in (other, copy.deepcopy(model)):
        got = twin(inputs, mode='loss')
        for name, value in want.items():
            assert torch.equal(got[name], value)
