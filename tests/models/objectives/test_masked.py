"""Objectives on masked patch tokens."""

import pytest
import torch
from toy_ibot import (
    TARGET,
    build_ibot,
    head_config,
    make_batch,
    mask_record,
    objective_configs,
    student_config,
)

from mim_plugins.checkpoints import CheckpointMismatch

DALLE = dict(n_hid=8, n_blk_per_group=1, vocab_size=10)


def with_mask(inputs, mask, padding=0):
    grid = inputs['masks']['global']['grid']
    inputs['masks']['global'] = mask_record(mask, grid, padding)
    return inputs


def patch_loss(model, inputs):
    return model(inputs, mode='loss')['loss_patch']


def test_patch_loss_counts_images_without_masks():
    """A crop with an empty mask contributes 0 but is counted."""
    model, inputs = build_ibot(), make_batch(batch=2)
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[0, :4] = True
    alone = patch_loss(model, with_mask(inputs, mask))
    mask[1, :4] = True
    both = patch_loss(model, with_mask(inputs, mask))
    mask[0] = False
    other = patch_loss(model, with_mask(inputs, mask))
    torch.testing.assert_close(both, alone + other)


def test_masks_that_are_empty_everywhere_give_zero():
    model, inputs = build_ibot(), make_batch()
    mask = torch.zeros(6, 9, dtype=torch.bool)
    loss = patch_loss(model, with_mask(inputs, mask, padding=4))
    loss.backward()
    assert loss == 0
    grads = [p.grad for p in model.student.parameters()]
    assert all(g is None or torch.isfinite(g).all() for g in grads)


@pytest.mark.parametrize('padding', [0, 1, 40])
def test_padding_changes_nothing(padding):
    model, inputs = build_ibot(), make_batch()
    mask = inputs['masks']['global']['mask']
    want = patch_loss(model, with_mask(inputs, mask))
    got = patch_loss(model, with_mask(inputs, mask, padding))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize('tokens', ['all', 'masked'])
def test_centre_averages_the_tokens_that_it_should(tokens):
    patch = dict(
        type='MaskedPatchDistillation',
        normalization=TARGET,
        centre_tokens=tokens,
    )
    model = build_ibot(objectives=objective_configs(patch=patch))
    inputs = make_batch()
    centre = model.objectives['patch'].normalization.centre
    before = centre.clone()
    model(inputs, mode='loss')
    model.after_optimizer_step()
    _, logits = build_teacher_logits(model, inputs, before)
    mask = inputs['masks']['global']['mask']
    rows = logits[mask] if tokens == 'masked' else logits.flatten(0, 1)
    torch.testing.assert_close(centre, 0.9 * before + 0.1 * rows.mean(0))


def build_teacher_logits(model, inputs, before):
    """Logits of the teacher as it was before its own update.

    Its parameters moved by (1 - momentum); the move is undone.
    """
    m = model.teacher.momentum
    for mine, theirs in (
        (model.teacher.backbone, model.student),
        (model.teacher.head, model.head),
    ):
        other = dict(theirs.named_parameters())
        for name, parameter in mine.named_parameters():
            parameter.data.sub_((1 - m) * other[name]).div_(m)
    return model.teacher.head(
        model.teacher.backbone.forward_tokens(inputs['views']['global'])
    )


@pytest.fixture
def dalle(tmp_path):
    from mmpretrain.registry import MODELS

    path = tmp_path / 'encoder.pth'
    torch.save(MODELS.build(dict(type='DALL-E', **DALLE)).state_dict(), path)
    return dict(type='DALLETokenizer', checkpoint=str(path), encoder=DALLE)


@pytest.fixture
def dino(tmp_path):
    path = tmp_path / 'dino.pth'
    torch.save(dict(state_dict=build_ibot().state_dict()), path)
    return dict(
        type='FrozenTokenizer',
        backbone=student_config(),
        head=head_config(),
        checkpoint=str(path),
    )


def predict(tokenizer, **others):
    patch = dict(type='TokenPrediction', tokenizer=tokenizer)
    return build_ibot(objectives=objective_configs(patch=patch), **others)


@pytest.mark.parametrize('kind', ['dalle', 'dino'])
def test_a_tokenizer_is_frozen_and_not_in_the_checkpoint(kind, request):
    model = predict(request.getfixturevalue(kind))
    tokenizer = model.objectives['patch'].tokenizer
    hidden = (getattr(tokenizer, 'encoder', None) or tokenizer.teacher).network
    assert next(hidden.parameters()).dtype == torch.float64  # it followed .to
    assert not [k for k in model.state_dict() if 'tokenizer' in k]
    own = {id(p) for p in model.parameters()}
    assert not any(id(p) in own for p in hidden.parameters())


def test_tokens_of_dino_are_the_targets(dino):
    model = predict(dino)
    inputs = make_batch()
    tokenizer = model.objectives['patch'].tokenizer
    index = inputs['masks']['global']['index']
    target = tokenizer(inputs['views']['global'], (3, 3), index)
    trained = build_ibot()
    trained.load_state_dict(torch.load(dino['checkpoint'])['state_dict'])
    _, all_logits = trained.teacher.head(
        trained.teacher.backbone.forward_tokens(inputs['views']['global'])
    )
    all_tokens = (all_logits / 0.04).softmax(-1).flatten(0, 1)
    torch.testing.assert_close(target, all_tokens[index])
    tokens = model.student.forward_tokens(
        inputs['views']['global'], inputs['masks']['global']['mask']
    )
    logits = model.head.forward_patch(tokens[:, 1:].flatten(0, 1)[index])
    log_p = (logits / 0.1).log_softmax(-1)
    weight = inputs['masks']['global']['weight']
    want = (-(target * log_p).sum(-1) * weight).sum() / 6
    torch.testing.assert_close(patch_loss(model, inputs), want)


def test_a_tokenizer_takes_the_place_of_the_teachers_pass(dino):
    patch = dict(type='TokenPrediction', tokenizer=dino)
    model = build_ibot(objectives=objective_configs(cls=None, patch=patch))

    def refuse(*_):
        raise AssertionError('nobody needs the moving average here')

    model.teacher.backbone.forward_tokens = refuse
    assert patch_loss(model, make_batch()) > 0


def test_ids_of_dalle_are_hard_targets(dalle):
    model = predict(dalle, dtype=torch.float32)
    inputs = make_batch(dtype=torch.float32)
    loss = patch_loss(model, inputs)
    loss.backward()
    tokenizer = model.objectives['patch'].tokenizer
    views, mask = inputs['views']['global'], inputs['masks']['global']
    ids = tokenizer(views, (3, 3), mask['index'])
    # one patch of 4 pixels becomes one token of 8; in [0.1, 0.9]
    mean, std = (
        torch.tensor(x).view(3, 1, 1) / 255
        for x in ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    )
    pixels = torch.nn.functional.interpolate(
        (views * std + mean).clamp(0, 1), 24, mode='bilinear', antialias=True
    )
    logits = tokenizer.encoder.network(0.1 + 0.8 * pixels)
    assert logits.shape == (6, DALLE['vocab_size'], 3, 3)
    assert torch.equal(ids, logits.argmax(1).flatten()[mask['index']])
    assert len(ids.unique()) > 1
    tokens = model.student.forward_tokens(views, mask['mask'])[:, 1:]
    student = model.head.forward_patch(tokens.flatten(0, 1)[mask['index']])
    each = torch.nn.functional.cross_entropy(
        student / 0.1, ids, reduction='none'
    )
    want = (each * mask['weight']).sum() / 6
    torch.testing.assert_close(loss, want)


def test_ids_do_not_depend_on_the_precision_of_training(dalle):
    tokenizer = predict(dalle, dtype=torch.float32).objectives['patch']
    views = make_batch(batch=40, dtype=torch.float32)['views']['global']
    index = torch.arange(len(views) * 9)
    want = tokenizer.tokenizer(views, (3, 3), index)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        got = tokenizer.tokenizer(views, (3, 3), index)
    assert torch.equal(got, want)


def test_another_vocabulary_is_named(dalle):
    model = predict(dalle, head=dict(out_dim=12), dtype=torch.float32)
    with pytest.raises(ValueError, match='patch_out_dim=10'):
        patch_loss(model, make_batch(dtype=torch.float32))


def test_a_file_that_does_not_fit_is_refused(dino):
    dino['backbone'] = student_config(num_layers=3)
    dino['backbone']['arch'] = dict(dino['backbone'].pop('arch'), num_layers=3)
    dino['backbone'].pop('num_layers')
    with pytest.raises(CheckpointMismatch, match='Nothing was loaded'):
        predict(dino)


def test_a_tokenizer_needs_its_file(dalle):
    dalle.pop('checkpoint')
    with pytest.raises(ValueError, match='tokenizer.checkpoint'):
        predict(dalle)
