import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.registry import MODELS

import mim_plugins  # noqa: F401
from mim_plugins.checkpoints import (
    CheckpointError,
    ibot_backbone_to_ours,
    ibot_head_to_ours,
    ibot_to_ours,
    ours_to_ibot,
    ours_to_ibot_backbone,
    ours_to_ibot_head,
)
from mim_plugins.checkpoints.timm import timm_to_ours


def official_backbone(depth=2, dim=8, masked=True, gammas=False):
    """Names and shapes of the official iBOT encoder, random values."""
    shapes = {
        'cls_token': (1, 1, dim),
        'pos_embed': (1, 5, dim),
        'patch_embed.proj.weight': (dim, 3, 4, 4),
        'patch_embed.proj.bias': (dim,),
        'norm.weight': (dim,),
        'norm.bias': (dim,),
    }
    if masked:
        shapes['masked_embed'] = (1, dim)
    for i in range(depth):
        for name, shape in {
            'norm1': (dim,),
            'attn.qkv': (3 * dim, dim),
            'attn.proj': (dim, dim),
            'norm2': (dim,),
            'mlp.fc1': (2 * dim, dim),
            'mlp.fc2': (dim, 2 * dim),
        }.items():
            shapes[f'blocks.{i}.{name}.weight'] = shape
            shapes[f'blocks.{i}.{name}.bias'] = shape[:1]
        if gammas:
            shapes[f'blocks.{i}.gamma_1'] = (dim,)
            shapes[f'blocks.{i}.gamma_2'] = (dim,)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def official_head(separate, norm=False, layers=3):
    """Names of the official iBOT head; a shared module is listed twice."""
    state = {}
    step = 3 if norm else 2
    for i in range(layers):
        name = f'mlp.{i * step}' if layers > 1 else 'mlp'
        state[f'{name}.weight'] = torch.randn(4, 4)
        state[f'{name}.bias'] = torch.randn(4)
    if norm:
        one = torch.randn(2, 4)
        names = ['norm'] + [f'mlp.{1 + step * i}' for i in range(layers - 1)]
        for name in names:
            state[f'{name}.weight'], state[f'{name}.bias'] = one
    for name in ('weight_g', 'weight_v'):
        width = 1 if name == 'weight_g' else 4
        first = torch.randn(6, width)
        second = torch.randn(5, width) if separate else first
        state[f'last_layer.{name}'] = first
        state[f'last_layer2.{name}'] = second
    return state


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].shape == value.shape, name
        assert torch.equal(actual[name], value), name


def make_backbone(**kwargs):
    arch = {
        'embed_dims': 8,
        'num_layers': 2,
        'num_heads': 2,
        'feedforward_channels': 16,
    }
    return MODELS.build(
        {
            'type': 'MaskedVisionTransformer',
            'arch': arch,
            'img_size': 8,
            'patch_size': 4,
            **kwargs,
        }
    )


def make_head(**kwargs):
    config = {
        'type': 'IBOTHead',
        'in_dim': 8,
        'out_dim': 6,
        'hidden_dim': 4,
        'bottleneck_dim': 3,
    }
    return MODELS.build({**config, **kwargs})


@pytest.mark.parametrize('masked', [True, False])
@pytest.mark.parametrize('gammas', [True, False])
@settings(max_examples=5, deadline=None)
@given(depth=st.integers(1, 12))
def test_backbone_round_trip_is_exact(masked, gammas, depth):
    official = official_backbone(depth, masked=masked, gammas=gammas)
    ours = ibot_backbone_to_ours(official)
    assert len(ours) == len(official)
    assert_same(ours_to_ibot_backbone(ours), official)


@pytest.mark.parametrize(
    'kwargs',
    [{}, {'mask_token': False}, {'layer_scale_init_value': 0.1}],
    ids=str,
)
def test_official_backbone_fits_the_model(kwargs):
    model = make_backbone(**kwargs)
    official = official_backbone(
        masked=kwargs.get('mask_token', True),
        gammas='layer_scale_init_value' in kwargs,
    )
    model.load_state_dict(ibot_backbone_to_ours(official))
    assert_same(ours_to_ibot_backbone(model.state_dict()), official)


def test_timm_layer_scale_is_read():
    official = official_backbone(gammas=True)
    timm = {
        re.sub(r'gamma_(\d)', r'ls\1.gamma', name): value
        for name, value in official.items()
    }
    assert 'blocks.0.ls1.gamma' in timm
    assert_same(timm_to_ours(timm), ibot_backbone_to_ours(official))


@pytest.mark.parametrize('layers', [1, 2, 3, 4])
@pytest.mark.parametrize('norm', [True, False])
@pytest.mark.parametrize('separate', [True, False])
def test_head_round_trip_is_exact(separate, norm, layers):
    official = official_head(separate, norm and layers > 1, layers)
    ours = ibot_head_to_ours(official)
    assert ('patch_last_layer.weight' in ours) == separate
    assert_same(ours_to_ibot_head(ours), official)


@pytest.mark.parametrize('num_layers', [1, 2, 3])
@pytest.mark.parametrize('norm', [None, 'ln', 'bn'])
@pytest.mark.parametrize('share', ['all', 'mlp'])
def test_our_head_survives_the_official_names(share, norm, num_layers):
    head = make_head(share=share, norm=norm, num_layers=num_layers)
    state = head.state_dict()
    there = ours_to_ibot_head(state)
    assert 'last_layer2.weight_v' in there
    assert_same(ibot_head_to_ours(there), state)
    head.load_state_dict(ibot_head_to_ours(there))


def test_dino_head_has_one_last_layer():
    state = make_head().state_dict()
    there = ours_to_ibot_head(state, patch_names=False)
    assert not any(name.startswith('last_layer2') for name in there)
    assert_same(ibot_head_to_ours(there), state)


@pytest.mark.parametrize(
    ('function', 'key'),
    [
        (ibot_backbone_to_ours, 'fc_norm.weight'),
        (ibot_backbone_to_ours, 'blocks.0.attn.q_bias'),
        (ours_to_ibot_backbone, 'layers.0.attn.unknown'),
        (ibot_head_to_ours, 'mlp2.weight'),
        (ours_to_ibot_head, 'patch_mlp.0.weight'),
    ],
)
def test_key_without_a_place_is_named(function, key):
    state = {key: torch.zeros(2)}
    with pytest.raises(CheckpointError, match=key):
        function(state)
    unplaced = []
    renamed = function(state, unplaced)
    assert renamed == {}
    assert unplaced == [key]


def official_checkpoint():
    student = {
        **{f'module.backbone.{k}': v for k, v in official_backbone().items()},
        **{f'module.head.{k}': v for k, v in official_head(True).items()},
    }
    teacher = {
        **{
            f'backbone.{k}': v
            for k, v in official_backbone(masked=False).items()
        },
        **{f'head.{k}': v for k, v in official_head(False).items()},
    }
    return {
        'student': student,
        'teacher': teacher,
        'optimizer': {},
        'epoch': 100,
        'args': None,
        'ibot_loss': {
            'center': torch.randn(1, 6),
            'center2': torch.randn(1, 1, 5),
        },
        'fp16_scaler': {},
    }


def test_official_file_round_trip_is_exact():
    official = official_checkpoint()
    unplaced = []
    ours = ibot_to_ours(official, unplaced)
    assert unplaced == ['optimizer', 'epoch', 'args', 'fp16_scaler']
    back = ours_to_ibot(ours)
    assert back.keys() == {'student', 'teacher', 'ibot_loss'}
    for part in back:
        assert_same(back[part], official[part])


def test_official_file_takes_the_names_of_the_model():
    ours = ibot_to_ours(official_checkpoint())
    expected = {
        'student.mask_token': (1, 1, 8),
        'student.layers.1.ffn.layers.0.0.weight': (16, 8),
        'head.patch_last_layer.scale': (5, 1),
        'teacher.backbone.ln1.bias': (8,),
        'teacher.head.last_layer.weight': (6, 4),
        'objectives.cls.normalization.centre': (6,),
        'objectives.patch.normalization.centre': (5,),
    }
    for name, shape in expected.items():
        assert ours[name].shape == shape
    assert 'teacher.backbone.mask_token' not in ours
    assert 'teacher.head.patch_last_layer.weight' not in ours


def test_keys_of_a_whole_file_without_a_place_are_named_by_path():
    official = official_checkpoint()
    official['teacher']['backbone.fc_norm.bias'] = torch.zeros(8)
    official['student']['module.extra'] = torch.zeros(1)
    with pytest.raises(CheckpointError, match='student.extra'):
        ibot_to_ours(official)
    unplaced = []
    ours = ibot_to_ours(official, unplaced)
    assert unplaced[:2] == ['student.extra', 'teacher.backbone.fc_norm.bias']
    ours['objectives.tokenizer.bias'] = torch.zeros(1)
    with pytest.raises(CheckpointError, match='objectives.tokenizer.bias'):
        ours_to_ibot(ours)


def test_other_files_are_no_pre_training_files():
    with pytest.raises(CheckpointError, match='neither a student.*model'):
        ibot_to_ours({'model': {}})
