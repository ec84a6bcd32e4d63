"""Export of a backbone, and loading one into a model."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from mmpretrain.models.backbones import VisionTransformer
from mmpretrain.registry import MODELS

import mim_plugins  # noqa: F401
from mim_plugins.checkpoints import (
    CheckpointError,
    CheckpointMismatch,
    export_backbone,
    find_backbone,
    load_backbone,
    load_file,
    ours_to_ibot_backbone,
    save_backbone,
)

TOOL = Path(__file__).parents[2] / 'tools' / 'export_backbone.py'
ARCH = {
    'embed_dims': 12,
    'num_layers': 2,
    'num_heads': 2,
    'feedforward_channels': 24,
}
SIZES = {'img_size': 16, 'patch_size': 4}


def make_masked(seed=0, **kwargs):
    torch.manual_seed(seed)
    config = {'type': 'MaskedVisionTransformer', 'arch': ARCH, **SIZES}
    vit = MODELS.build({**config, **kwargs})
    with torch.no_grad():
        for param in vit.parameters():
            param.normal_(std=0.3)
    return vit.eval()


def prefixed(prefix, state):
    return {f'{prefix}{name}': value for name, value in state.items()}


def training_state(teacher, student):
    return {
        **prefixed('student.', student.state_dict()),
        'head.mlp.0.weight': torch.zeros(2, 2),
        **prefixed('teacher.backbone.', teacher.state_dict()),
        'teacher.head.mlp.0.weight': torch.zeros(2, 2),
        'objectives.cls.normalization.centre': torch.zeros(3),
    }


def as_training(teacher, student):
    return {
        'meta': {'epoch': 3},
        'state_dict': training_state(teacher, student),
        'optimizer': {},
    }


def as_distributed_training(teacher, student):
    state = training_state(teacher, student)
    return {'state_dict': prefixed('module.', state)}


def as_compiled_training(teacher, student):
    state = training_state(teacher, student)
    return {
        'state_dict': {
            k.replace('layers.', '_orig_mod.layers.', 1): v
            for k, v in state.items()
        }
    }


def as_official(teacher, student):
    return {
        'student': prefixed(
            'module.backbone.', ours_to_ibot_backbone(student.state_dict())
        ),
        'teacher': {
            **prefixed(
                'backbone.', ours_to_ibot_backbone(teacher.state_dict())
            ),
            'head.mlp.0.weight': torch.zeros(2, 2),
        },
        'epoch': 3,
    }


TWO_NETWORKS = [
    as_training,
    as_distributed_training,
    as_compiled_training,
    as_official,
]


@pytest.fixture(scope='module')
def networks():
    return make_masked(1, mask_token=False), make_masked(2)


def features(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 16, 16, generator=generator)
    with torch.no_grad():
        return model(x)[0]


def snapshot(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_untouched(model, before):
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize('layout', TWO_NETWORKS)
@pytest.mark.parametrize('network', ['teacher', 'student'])
def test_export_fits_mmpretrain_and_keeps_the_features(
    networks, layout, network
):
    teacher, student = networks
    state = export_backbone(layout(teacher, student), network)
    plain = VisionTransformer(arch=ARCH, **SIZES)
    plain.load_state_dict(state, strict=True)
    plain.eval()
    source = teacher if network == 'teacher' else student
    assert torch.equal(features(plain), features(source))


def test_export_is_a_copy(networks):
    teacher, student = networks
    before = snapshot(teacher)
    state = export_backbone(as_training(teacher, student))
    for value in state.values():
        value.zero_()
    assert_untouched(teacher, before)


def test_export_refuses_what_mmpretrain_has_no_place_for(networks):
    official = as_official(*networks)
    official['teacher']['backbone.fc_norm.weight'] = torch.zeros(12)
    with pytest.raises(CheckpointError, match='fc_norm.weight.*exported'):
        export_backbone(official)


@pytest.mark.parametrize('layout', TWO_NETWORKS)
@pytest.mark.parametrize('network', ['teacher', 'student'])
def test_load_takes_the_network_asked_for(tmp_path, networks, layout, network):
    path = tmp_path / 'file.pth'
    torch.save(layout(*networks), path)
    model = make_masked(5)
    report = load_backbone(model, path, network)
    source = networks[network == 'student']
    assert torch.equal(features(model), features(source))
    lacking = ['mask_token'] if network == 'teacher' else []
    assert report.missing == lacking
    assert sorted(report.loaded + lacking) == sorted(model.state_dict())
    assert report.unplaced == []
    heads = [k for k in report.left_out if 'head.mlp' in k]
    assert bool(heads) == (layout is not as_official or network == 'teacher')


@pytest.mark.parametrize(
    'wrap',
    [
        lambda s: s,
        lambda s: {'state_dict': s, 'meta': {}},
        lambda s: {'state_dict': prefixed('backbone.', s)},
        lambda s: {'model': ours_to_ibot_backbone(s)},
        ours_to_ibot_backbone,
    ],
    ids=['plain', 'exported', 'classifier', 'timm', 'dino'],
)
def test_files_with_one_backbone(tmp_path, networks, wrap):
    path = tmp_path / 'file.pth'
    torch.save(wrap(dict(networks[0].state_dict())), path)
    model = make_masked(5)
    load_backbone(model, path)
    assert torch.equal(features(model), features(networks[0]))


def test_mask_token_has_no_place_in_a_plain_vit(tmp_path, networks):
    path = tmp_path / 'file.pth'
    torch.save(as_training(*networks), path)
    plain = VisionTransformer(arch=ARCH, **SIZES)
    plain.eval()
    report = load_backbone(plain, path, 'student')
    assert report.unplaced == ['mask_token']
    assert 'without a place: mask_token' in str(report)
    assert torch.equal(features(plain), features(networks[1]))


def test_names_without_a_place_are_reported(tmp_path, networks):
    path = tmp_path / 'file.pth'
    official = as_official(*networks)
    official['teacher']['backbone.fc_norm.weight'] = torch.zeros(12)
    torch.save(official, path)
    report = load_backbone(make_masked(), path)
    assert report.unplaced == ['fc_norm.weight']


def test_position_embedding_is_interpolated_and_reported(tmp_path, networks):
    path = tmp_path / 'file.pth'
    torch.save(as_training(*networks), path)
    model = make_masked(5, img_size=24)
    report = load_backbone(model, path)
    assert report.resized == ['pos_embed']
    x = torch.randn(2, 3, 24, 24)
    torch.testing.assert_close(model(x)[0], networks[0](x)[0])


@pytest.mark.parametrize(
    ('kwargs', 'words'),
    [
        (
            {'arch': {**ARCH, 'embed_dims': 8}},
            r'of width 12; the config builds width 8\. Set '
            r'model\.student\.arch=dict\(embed_dims=12, num_layers=2, '
            r'feedforward_channels=24, num_heads=\.\.\.\)',
        ),
        (
            {'arch': {**ARCH, 'num_layers': 3}},
            'of depth 2; the config builds depth 3',
        ),
        (
            {'arch': {**ARCH, 'num_layers': 1}},
            'of depth 2; the config builds depth 1',
        ),
        (
            {'arch': {**ARCH, 'feedforward_channels': 48}},
            'feed-forward width 24; the config builds feed-forward width 48',
        ),
        (
            {'patch_size': 8},
            r'patch size 4; the config builds patch size 8\. Set '
            r'model\.student\.patch_size=4, or',
        ),
        (
            {'patch_size': (4, 8), 'in_channels': 1},
            r'patch size 4 and 3 input channels; the config builds patch '
            r'size \(4, 8\) and 1 input channels',
        ),
        ({'layer_scale_init_value': 0.1}, 'lacks layers.0.attn.gamma1'),
        ({'with_cls_token': False, 'out_type': 'raw'}, 'pos_embed is'),
    ],
    ids=str,
)
def test_mismatch_is_named_and_nothing_is_loaded(
    tmp_path, networks, kwargs, words
):
    path = tmp_path / 'epoch_3.pth'
    torch.save(as_training(*networks), path)
    model = make_masked(5, **kwargs)
    before = snapshot(model)
    with pytest.raises(CheckpointMismatch, match=words) as error:
        load_backbone(model, path)
    assert str(error.value).startswith(str(path))
    assert str(error.value).endswith('Nothing was loaded.')
    assert_untouched(model, before)


def test_blocks_of_another_kind_are_a_mismatch(tmp_path):
    """Features would differ: layer scale cannot just be left out."""
    path = tmp_path / 'file.pth'
    torch.save(make_masked(layer_scale_init_value=0.1).state_dict(), path)
    model = make_masked(5)
    before = snapshot(model)
    with pytest.raises(CheckpointMismatch, match='no place for layers.0.attn'):
        load_backbone(model, path)
    assert_untouched(model, before)


def test_mismatch_suggests_the_published_name(tmp_path):
    path = tmp_path / 'epoch_300.pth'
    small = {
        'type': 'MaskedVisionTransformer',
        'arch': 'deit-small',
        'patch_size': 16,
        'img_size': 32,
    }
    with torch.device('meta'):
        state = MODELS.build(small).state_dict()
        base = MODELS.build({**small, 'arch': 'base'})
    torch.save(
        {k: torch.zeros(1).expand(v.shape) for k, v in state.items()}, path
    )
    with pytest.raises(CheckpointMismatch) as error:
        load_backbone(base, path)
    assert str(error.value) == (
        f'{path} holds a backbone of width 384; the config builds width 768 '
        "(arch='base'). Set model.student.arch='deit-small', or load "
        'another checkpoint. Nothing was loaded.'
    )


def test_table_of_a_non_square_grid_is_not_guessed(tmp_path):
    path = tmp_path / 'file.pth'
    torch.save(make_masked(img_size=(8, 20)).state_dict(), path)
    with pytest.raises(CheckpointMismatch, match='pos_embed is'):
        load_backbone(make_masked(), path)


def test_lacking_network_is_named(tmp_path, networks):
    only = {'state_dict': prefixed('student.', networks[1].state_dict())}
    with pytest.raises(CheckpointError, match='no teacher, only a student'):
        find_backbone(only, 'teacher')
    with pytest.raises(ValueError, match="network='ema'"):
        find_backbone(only, 'ema')


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        ({'layer1.conv.weight': torch.zeros(1)}, 'keys: layer1.conv.weight'),
        ({'meta': 1, 'epoch': 2}, 'meta, epoch are not tensors'),
        ({}, 'first keys: none'),
    ],
)
def test_other_files_hold_no_backbone(tmp_path, content, words):
    path = tmp_path / 'file.pth'
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=words):
        load_backbone(make_masked(), path)


def test_saved_backbone_says_what_it_is(tmp_path, networks):
    source, out = tmp_path / 'epoch_3.pth', tmp_path / 'new' / 'vit.pth'
    torch.save(as_training(*networks), source)
    meta = save_backbone(source, out)
    assert meta == {
        'source': 'epoch_3.pth',
        'network': 'teacher',
        'width': 12,
        'depth': 2,
        'feedforward': 24,
        'patch_size': (4, 4),
        'in_channels': 3,
    }
    written = load_file(out)
    assert written['meta'] == meta
    assert [p.name for p in out.parent.iterdir()] == ['vit.pth']
    plain = VisionTransformer(arch=ARCH, **SIZES)
    plain.load_state_dict(written['state_dict'])
    with pytest.raises(CheckpointError, match='is the checkpoint itself'):
        save_backbone(source, tmp_path / 'new' / '..' / 'epoch_3.pth')


def run_tool(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['export', *map(str, arguments)])
    runpy.run_path(str(TOOL), run_name='__main__')


def test_tool_writes_a_file_for_mmpretrain(
    tmp_path, networks, monkeypatch, capsys
):
    source, out = tmp_path / 'epoch_3.pth', tmp_path / 'vit.pth'
    torch.save(as_training(*networks), source)
    options = ('--network', 'student', '--prefix', 'backbone.')
    run_tool(monkeypatch, source, out, *options)
    assert 'network student, width 12' in capsys.readouterr().out
    state = load_file(out)['state_dict']
    assert torch.equal(
        state['backbone.cls_token'], networks[1].state_dict()['cls_token']
    )
    assert 'backbone.mask_token' not in state


def test_tool_ends_with_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match='CheckpointError: .*none.pth'):
        run_tool(monkeypatch, tmp_path / 'none.pth', tmp_path / 'out.pth')
    assert not (tmp_path / 'out.pth').exists()
