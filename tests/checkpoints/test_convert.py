"""Checkpoints of every layout to every other, and back."""

import argparse
import json

import pytest
import torch
from mmpretrain.models.backbones import VisionTransformer
from toy_ibot import build_ibot, make_batch, student_config, total_loss

from mim_plugins.checkpoints import (
    CheckpointError,
    convert,
    find_backbone,
    huggingface_to_ours,
    load_backbone,
    load_file,
    ours_to_huggingface,
    ours_to_ibot,
)
from mim_plugins.checkpoints.start import start_from

WIDTH, HEADS, GRID = 12, 2, 3


@pytest.fixture
def model():
    return build_ibot(dtype=torch.float32)


@pytest.fixture
def ours(model, tmp_path):
    """A pre-training checkpoint as mmengine writes it."""
    path = tmp_path / 'epoch_1.pth'
    content = {'state_dict': model.state_dict(), 'meta': {'epoch': 1}}
    torch.save({**content, 'optimizer': {'state': {}}}, path)
    return path


@pytest.fixture
def official(model, tmp_path):
    """An official iBOT checkpoint."""
    path = tmp_path / 'checkpoint.pth'
    content = ours_to_ibot(model.state_dict())
    arguments = argparse.Namespace(arch='vit_small')
    torch.save({**content, 'epoch': 3, 'args': arguments}, path)
    return path


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


# -- round trips -----------------------------------------------------------


def test_ours_to_official_and_back_is_exact(ours, model, tmp_path):
    there, back = tmp_path / 'there.pth', tmp_path / 'back.pth'
    result = convert(ours, there, 'ibot')
    assert result.left_out == ['meta', 'optimizer']
    content = load_file(there)
    assert set(content) == {'student', 'teacher', 'ibot_loss'}
    assert all(name.startswith('module.') for name in content['student'])
    convert(there, back, 'ours')
    assert_same(load_file(back)['state_dict'], model.state_dict())


def test_official_to_ours_and_back_is_exact(official, tmp_path):
    there, back = tmp_path / 'there.pth', tmp_path / 'back.pth'
    result = convert(official, there, 'ours')
    assert result.left_out == ['epoch', 'args']
    assert 'left out: epoch, args' in str(result)
    convert(there, back, 'ibot')
    source, result = load_file(official), load_file(back)
    for part in ('student', 'teacher', 'ibot_loss'):
        assert_same(result[part], source[part])


@pytest.mark.parametrize('network', ['teacher', 'student'])
@pytest.mark.parametrize('to', ['timm', 'ibot', 'huggingface'])
def test_a_backbone_there_and_back_is_exact(ours, tmp_path, network, to):
    there, back = tmp_path / 'there', tmp_path / 'back.pth'
    convert(ours, there, to, network, num_heads=HEADS)
    convert(there, back, 'ours', network)
    expected = find_backbone(load_file(ours), network).state
    if to == 'timm':
        expected.pop('mask_token', None)
    assert_same(load_file(back)['state_dict'], expected)


def test_timm_gets_its_own_names(tmp_path):
    state = VisionTransformer(
        student_config()['arch'],
        img_size=12,
        patch_size=4,
        layer_scale_init_value=0.1,
    ).state_dict()
    path, out = tmp_path / 'file.pth', tmp_path / 'timm.safetensors'
    torch.save({'state_dict': state}, path)
    convert(path, out, 'timm')
    names = load_file(out)
    assert 'blocks.1.ls2.gamma' in names
    assert 'norm.weight' in names
    back = tmp_path / 'back.pth'
    convert(out, back, 'ours')
    assert_same(load_file(back)['state_dict'], state)


# -- what is inside --------------------------------------------------------


def test_dinos_centre_is_ours(official, tmp_path):
    content = load_file(official)
    centre = content.pop('ibot_loss')['center']
    path, out = tmp_path / 'dino.pth', tmp_path / 'out.pth'
    torch.save({**content, 'dino_loss': {'center': centre}}, path)
    convert(path, out, 'ours')
    state = load_file(out)['state_dict']
    name = 'objectives.cls.normalization.centre'
    assert torch.equal(state[name], centre.flatten())


def test_maes_decoder_is_left_out_by_name(official, tmp_path):
    encoder = {
        name[len('backbone.') :]: value
        for name, value in load_file(official)['teacher'].items()
        if name.startswith('backbone.')
    }
    decoder = {
        'mask_token': torch.zeros(1, 1, 7),
        'decoder_pos_embed': torch.zeros(1, 10, 7),
        'decoder_blocks.0.norm1.weight': torch.zeros(7),
    }
    path, out = tmp_path / 'mae.pth', tmp_path / 'out.pth'
    torch.save({'model': {**encoder, **decoder}}, path)
    result = convert(path, out, 'ours')
    assert result.left_out == list(decoder)
    state = load_file(out)['state_dict']
    assert 'mask_token' not in state
    assert len(state) == len(encoder)


def test_a_key_without_a_place_is_named(official, tmp_path):
    content = load_file(official)
    content['teacher']['backbone.fc_norm.weight'] = torch.zeros(WIDTH)
    path, out = tmp_path / 'odd.pth', tmp_path / 'out.pth'
    torch.save(content, path)
    with pytest.raises(CheckpointError, match='fc_norm.weight.*--allow'):
        convert(path, out, 'timm')
    assert not out.exists()
    result = convert(path, out, 'timm', allow_unplaced=True)
    assert result.unplaced == ['fc_norm.weight']
    with pytest.raises(CheckpointError, match='teacher.backbone.fc_norm'):
        convert(path, tmp_path / 'whole.pth', 'ours')


def test_wrong_targets_are_named(ours, tmp_path):
    with pytest.raises(CheckpointError, match="'onnx'"):
        convert(ours, tmp_path / 'x', 'onnx')
    with pytest.raises(CheckpointError, match='for timm only'):
        convert(ours, tmp_path / 'x.safetensors', 'ours')
    with pytest.raises(CheckpointError, match='is the checkpoint itself'):
        convert(ours, ours, 'ibot')
    with pytest.raises(CheckpointError, match='--num-heads'):
        convert(ours, tmp_path / 'hf', 'huggingface')
    with pytest.raises(CheckpointError, match='is a file'):
        convert(ours, ours, 'huggingface', num_heads=HEADS)


# -- Hugging Face ----------------------------------------------------------


def literal_huggingface(state, pixels, heads):
    """``ViTModel`` as its names read: last hidden states (B, 1 + N, D)."""
    functional = torch.nn.functional

    def linear(name, x):
        return functional.linear(
            x, state[f'{name}.weight'], state[f'{name}.bias']
        )

    def norm(name, x):
        weight, bias = state[f'{name}.weight'], state[f'{name}.bias']
        return functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)

    patches = 'embeddings.patch_embeddings.projection'
    kernel = state[f'{patches}.weight']
    x = functional.conv2d(
        pixels, kernel, state[f'{patches}.bias'], stride=kernel.shape[-1]
    )
    x = x.flatten(2).transpose(1, 2)
    cls = state['embeddings.cls_token'].expand(len(x), -1, -1)
    x = torch.cat([cls, x], 1) + state['embeddings.position_embeddings']
    depth = 0
    while f'encoder.layer.{depth}.layernorm_before.weight' in state:
        layer = f'encoder.layer.{depth}'
        attention = f'{layer}.attention.attention'
        h = norm(f'{layer}.layernorm_before', x)
        q, k, v = (
            linear(f'{attention}.{part}', h).unflatten(-1, (heads, -1))
            for part in ('query', 'key', 'value')
        )
        weights = torch.einsum('bqhd,bkhd->bhqk', q, k) / q.shape[-1] ** 0.5
        h = torch.einsum('bhqk,bkhd->bqhd', weights.softmax(-1), v).flatten(2)
        x = x + linear(f'{layer}.attention.output.dense', h)
        h = norm(f'{layer}.layernorm_after', x)
        h = functional.gelu(linear(f'{layer}.intermediate.dense', h))
        x = x + linear(f'{layer}.output.dense', h)
        depth += 1
    return norm('layernorm', x)


def test_features_of_the_hugging_face_folder(ours, model, tmp_path):
    folder = tmp_path / 'hf'
    convert(ours, folder, 'huggingface', num_heads=HEADS)
    config = json.loads((folder / 'config.json').read_text())
    assert config['model_type'] == 'vit'
    assert config['layer_norm_eps'] == 1e-6
    shapes = ('hidden_size', 'num_hidden_layers', 'num_attention_heads')
    assert [config[key] for key in shapes] == [WIDTH, 2, HEADS]
    assert (config['image_size'], config['patch_size']) == (12, 4)
    pixels = torch.randn(2, 3, 12, 12)
    found = literal_huggingface(load_file(folder), pixels, HEADS)
    expected = model.teacher.backbone.forward_tokens(pixels)
    torch.testing.assert_close(found, expected)


def test_a_hugging_face_classifier_loads_by_its_folder(ours, tmp_path, model):
    folder = tmp_path / 'hf'
    convert(ours, folder, 'huggingface', num_heads=HEADS)
    state = {f'vit.{k}': v for k, v in load_file(folder).items()}
    state['classifier.weight'] = torch.zeros(5, WIDTH)
    (folder / 'model.safetensors').unlink()
    torch.save(state, folder / 'pytorch_model.bin')
    report = load_backbone(model.student, folder)
    assert report.left_out == ['classifier.weight']
    pixels = torch.randn(2, 3, 12, 12)
    assert torch.equal(
        model.student.forward_tokens(pixels),
        model.teacher.backbone.forward_tokens(pixels),
    )


def test_a_block_without_a_key_is_refused(ours):
    state = ours_to_huggingface(find_backbone(load_file(ours)).state)
    del state['encoder.layer.1.attention.attention.key.weight']
    with pytest.raises(CheckpointError, match='layers.1.attn.key.weight'):
        huggingface_to_ours(state)


# -- continuing ------------------------------------------------------------


def test_the_loss_goes_on_where_an_official_run_stopped(official, model):
    inputs = make_batch(dtype=torch.float32)
    torch.manual_seed(5)
    other = build_ibot(dtype=torch.float32)
    before = total_loss(model.loss(inputs))
    assert abs(total_loss(other.loss(inputs)) - before) > 0.01
    start = start_from(load_file(official), other.state_dict(), 'file')
    other.load_state_dict(start.state)
    torch.testing.assert_close(total_loss(other.loss(inputs)), before)
    assert start.kept == []
    assert start.unused == ['epoch', 'args']


@pytest.mark.parametrize('to', ['ours', 'ibot', 'timm', 'huggingface'])
def test_any_backbone_starts_student_and_teacher(ours, model, tmp_path, to):
    path = tmp_path / 'one'
    convert(ours, path, to, 'teacher', num_heads=HEADS)
    other = build_ibot(dtype=torch.float32)
    start = start_from(load_file(path), other.state_dict(), 'file')
    other.load_state_dict(start.state, strict=False)
    pixels = torch.randn(2, 3, 12, 12)
    expected = model.teacher.backbone.forward_tokens(pixels)
    for backbone in (other.student, other.teacher.backbone):
        torch.testing.assert_close(backbone.forward_tokens(pixels), expected)
    assert 'student.mask_token' in start.kept
    assert 'head.mlp.0.weight' in start.kept
    assert 'start values stay: student.mask_token' in str(start)
    assert total_loss(other.loss(make_batch(dtype=torch.float32))).isfinite()


def test_a_student_alone_starts_both(official, tmp_path):
    content = load_file(official)
    del content['teacher']
    other = build_ibot(dtype=torch.float32)
    start = start_from(content, other.state_dict(), 'file')
    assert 'teacher.backbone.cls_token' in start.state
    assert 'student.mask_token' in start.state


def test_a_file_of_something_else_is_refused(model):
    with pytest.raises(CheckpointError, match='no vision transformer'):
        start_from({'fc.weight': torch.zeros(2)}, model.state_dict(), 'file')
