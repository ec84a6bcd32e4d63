"""Networks of timm, MAE, DINO and Hugging Face: names and features."""

import itertools
import json
import sys

import pytest
import torch
from literal_vits import (
    DEPTH,
    GRID,
    HEADS,
    PATCH,
    WIDTH,
    huggingface_features,
    huggingface_state,
    pictures,
    timm_features,
    timm_state,
)
from mmpretrain.registry import MODELS

from mim_plugins.checkpoints import (
    CheckpointError,
    convert,
    huggingface_to_ours,
    load_backbone,
    load_file,
)
from mim_plugins.checkpoints.convert import FORMATS
from mim_plugins.checkpoints.layouts import find_backbone
from mim_plugins.checkpoints.timm import ours_to_timm, timm_to_ours


def build(**options):
    arch = {
        'embed_dims': WIDTH,
        'num_layers': DEPTH,
        'num_heads': HEADS,
        'feedforward_channels': 2 * WIDTH,
    }
    config = {
        'type': 'MaskedVisionTransformer',
        'arch': arch,
        'img_size': GRID * PATCH,
        'patch_size': PATCH,
        'mask_token': False,
    }
    return MODELS.build({**config, **options}).double().eval()


def save(content, path):
    torch.save(content, path)
    return path


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize(
    ('state', 'options'),
    [
        ({}, {}),
        ({'scale': True}, {'layer_scale_init_value': 0.1}),
        ({'cls_position': False}, {}),
    ],
    ids=str,
)
def test_a_timm_network_keeps_its_features(state, options, tmp_path):
    state, pixels = timm_state(**state), pictures()
    path, out = save(state, tmp_path / 'timm.pth'), tmp_path / 'out.pth'
    convert(path, out, 'ours')
    model = build(**options)
    model.load_state_dict(load_file(out)['state_dict'])
    found = model.forward_tokens(pixels)
    torch.testing.assert_close(found, timm_features(state, pixels))


def test_a_network_that_pools_has_a_norm_of_its_own(tmp_path):
    """As MAE's fine-tuned ones do."""
    state, pixels = timm_state(pooled=True), pictures()
    path = save({'model': state}, tmp_path / 'mae.pth')
    result = convert(path, tmp_path / 'out.pth', 'ours')
    assert "out_type='avg_featmap', final_norm=False" in str(result)
    model = build(out_type='avg_featmap', final_norm=False)
    model.load_state_dict(load_file(tmp_path / 'out.pth')['state_dict'])
    (found,) = model(pixels)
    torch.testing.assert_close(found, timm_features(state, pixels))
    with pytest.raises(CheckpointError, match='lacks ln1.weight'):
        load_backbone(build(), path)


def test_what_no_vit_of_ours_has_is_named():
    registers = {**timm_state(), 'reg_token': torch.zeros(1, 4, WIDTH)}
    with pytest.raises(CheckpointError, match='reg_token'):
        timm_to_ours(registers)
    masked = {**timm_to_ours(timm_state()), 'mask_token': torch.zeros(1, 1, 1)}
    with pytest.raises(CheckpointError, match='mask_token'):
        ours_to_timm(masked)


@pytest.mark.parametrize('of_module', [False, True], ids=['file', 'module'])
def test_a_hugging_face_network_keeps_its_features(of_module, tmp_path):
    state, pixels = huggingface_state(of_module), pictures()
    path = save(state, tmp_path / 'pytorch_model.bin')
    (tmp_path / 'config.json').write_text('{"layer_norm_eps": 1e-3}')
    result = convert(path, tmp_path / 'out.pth', 'ours')
    (note,) = result.notes
    assert "norm_cfg=dict(type='LN', eps=0.001)" in note
    model = build(norm_cfg={'type': 'LN', 'eps': 1e-3})
    model.load_state_dict(load_file(tmp_path / 'out.pth')['state_dict'])
    found = model.forward_tokens(pixels)
    expected = huggingface_features(state, pixels, 1e-3)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize('part', ['query', 'key', 'value'])
def test_a_part_of_the_attention_is_never_dropped(part):
    state = huggingface_state()
    name = f'encoder.layer.1.attention.attention.{part}.bias'
    del state[name]
    with pytest.raises(CheckpointError, match=f'layers.1.attn.{part}.bias'):
        huggingface_to_ours(state)


def test_config_of_a_hugging_face_folder_is_kept(tmp_path):
    source, out = tmp_path / 'source', tmp_path / 'out'
    source.mkdir()
    save(huggingface_state(), source / 'pytorch_model.bin')
    config = {'num_attention_heads': HEADS, 'layer_norm_eps': 1e-5}
    (source / 'config.json').write_text(json.dumps(config))
    convert(source, out, 'huggingface')
    written = json.loads((out / 'config.json').read_text())
    assert config.items() <= written.items()
    (source / 'config.json').write_text('{')
    with pytest.raises(CheckpointError, match='config.json could not be read'):
        convert(source, out, 'huggingface')


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    path = save(timm_state(), tmp_path / 'timm.pth')
    out = tmp_path / 'out.safetensors'
    convert(path, out, 'timm')
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    monkeypatch.setitem(sys.modules, 'safetensors.torch', None)
    with pytest.raises(CheckpointError, match='pip install safetensors'):
        load_file(out)
    with pytest.raises(CheckpointError, match='pip install safetensors'):
        convert(path, tmp_path / 'two.safetensors', 'timm')
    assert not (tmp_path / 'two.safetensors').exists()


def file_of(kind, folder):
    """A file of a kind without any help of ours, and its encoder."""
    state, path = timm_state(), folder / f'{kind}.pth'
    if kind == 'huggingface':
        state = huggingface_state()
        return save(state, folder / 'pytorch_model.bin'), state
    if kind == 'ours':
        state = build().state_dict()
        return save({'state_dict': state}, path), state
    if kind == 'ibot':
        named = {f'backbone.{name}': value for name, value in state.items()}
        return save({'teacher': named}, path), state
    return save({'model': state} if kind == 'mae' else state, path), state


def encoder_in(path, to):
    content = load_file(path)
    if to == 'ibot':
        content = content['teacher']
        return {k.removeprefix('backbone.'): v for k, v in content.items()}
    return content['state_dict'] if to == 'ours' else content


SOURCES = ('ours', 'ibot', 'dino', 'mae', 'timm', 'huggingface')


@pytest.mark.parametrize(
    ('kind', 'between'), itertools.product(SOURCES, FORMATS)
)
def test_there_and_back_is_exact(kind, between, tmp_path):
    path, state = file_of(kind, tmp_path)
    own = kind if kind in FORMATS else 'timm'
    there, back = tmp_path / 'there', tmp_path / 'back'
    convert(path, there, between, num_heads=HEADS, names=kind)
    convert(there, back, own, num_heads=HEADS)
    assert_same(encoder_in(back, own), state)


def test_names_can_be_told(tmp_path):
    path = save(timm_state(pooled=True), tmp_path / 'file.pth')
    out = tmp_path / 'out.pth'
    with pytest.raises(CheckpointError, match='fc_norm.weight'):
        convert(path, out, 'ours', names='ibot')
    with pytest.raises(CheckpointError, match='no vision transformer'):
        convert(path, out, 'ours', names='huggingface')
    assert not out.exists()
    with pytest.raises(ValueError, match="names='torch'"):
        find_backbone(load_file(path), names='torch')


def test_all_else_in_a_file_is_named(tmp_path):
    named = {f'backbone.{name}': v for name, v in timm_state().items()}
    head = {'head.mlp.0.weight': torch.zeros(2, 2)}
    path = save(
        {
            'student': {f'module.{name}': v for name, v in named.items()},
            'teacher': {**named, **head},
            'optimizer': {'state': {}},
            'epoch': 3,
        },
        tmp_path / 'checkpoint.pth',
    )
    result = convert(path, tmp_path / 'out.pth', 'timm')
    others = ['student', 'optimizer', 'epoch']
    assert result.left_out == [*head, *others]
    state = timm_state()
    path = save({'model': state, 'model_ema': state}, tmp_path / 'ema.pth')
    result = convert(path, tmp_path / 'out.pth', 'ours')
    assert result.left_out == ['model_ema']
