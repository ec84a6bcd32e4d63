import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models.backbones import VisionTransformer
from mmpretrain.registry import MODELS

import mim_plugins  # noqa: F401
from mim_plugins.checkpoints import (
    CheckpointError,
    CheckpointMismatch,
    UnsafeCheckpoint,
)
from mim_plugins.compat import release

ARCH = {
    'embed_dims': 24,
    'num_layers': 3,
    'num_heads': 3,
    'feedforward_channels': 48,
}


def build(**kwargs):
    config = {
        'type': 'MaskedVisionTransformer',
        'arch': ARCH,
        'img_size': 32,
        'patch_size': 8,
    }
    return MODELS.build({**config, **kwargs})


def make_vit(seed=0, **kwargs):
    torch.manual_seed(seed)
    vit = build(**kwargs)
    vit.init_weights()
    with torch.no_grad():  # start values hide mistakes: make them large
        for param in vit.parameters():
            param.add_(torch.randn_like(param) * 0.2)
    return vit.eval()


def make_plain(vit, **kwargs):
    config = {'arch': ARCH, 'img_size': 32, 'patch_size': 8}
    plain = VisionTransformer(**{**config, **kwargs})
    state = vit.state_dict()
    state.pop('mask_token', None)
    plain.load_state_dict(state)
    plain.eval()
    return plain


@pytest.mark.parametrize('size', [(32, 32), (48, 48), (16, 40), (24, 16)])
@pytest.mark.parametrize('out_type', ['cls_token', 'featmap', 'raw'])
def test_forward_is_mmpretrains(size, out_type):
    kwargs = {'out_type': out_type, 'out_indices': [0, 2]}
    vit = make_vit(**copy.deepcopy(kwargs))
    plain = make_plain(vit, **kwargs)
    x = torch.randn(2, 3, *size)
    ours, theirs = vit(x), plain(x)
    assert len(ours) == len(theirs) == 2
    for one, two in zip(ours, theirs):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    'kwargs',
    [
        {'out_type': 'avg_featmap'},
        {'out_type': 'featmap', 'with_cls_token': False},
        {'pre_norm': True},
        {'final_norm': False},
        {'layer_scale_init_value': 0.1},
        {'qkv_bias': False},
        {'in_channels': 5},
        {'img_size': (32, 48)},
        {'patch_size': (8, 16)},
    ],
    ids=str,
)
def test_every_option_of_mmpretrain_works(kwargs):
    vit = make_vit(**kwargs)
    plain = make_plain(vit, **kwargs)
    x = torch.randn(2, kwargs.get('in_channels', 3), 32, 64)
    assert torch.equal(vit(x)[0], plain(x)[0])


def test_training_forward_is_mmpretrains():
    """Stochastic depth included: the same draws, the same result."""
    vit = make_vit(drop_path_rate=0.5, drop_rate=0.1)
    plain = make_plain(vit, drop_path_rate=0.5, drop_rate=0.1)
    vit.train(), plain.train()
    x = torch.randn(8, 3, 32, 32)
    outputs = []
    for model in (vit, plain):
        torch.manual_seed(3)
        outputs.append(model(x)[0])
    assert torch.equal(*outputs)


@settings(max_examples=10)
@given(st.integers(0, 12), st.integers(0, 99))
def test_tokens_asked_for_are_those_of_all(count, seed):
    vit = make_vit(seed)
    x = torch.randn(3, 3, 16, 16)
    mask = torch.rand(3, 4) < 0.5
    index = torch.randint(12, (count,))
    whole = vit.forward_tokens(x, mask)
    some = vit.forward_tokens(x, mask, index)
    expected = [whole[:, 0], whole[:, 1:].flatten(0, 1)[index]]
    torch.testing.assert_close(some, torch.cat(expected))


def test_drop_path_acts_in_training_only():
    vit = make_vit(drop_path_rate=0.5)
    x = torch.randn(8, 3, 32, 32)
    assert torch.equal(vit.forward_tokens(x), vit.forward_tokens(x))
    vit.train()
    assert not torch.equal(vit.forward_tokens(x), vit.forward_tokens(x))


def test_drop_path_grows_with_depth():
    vit = make_vit(drop_path_rate=0.4)
    rates = [layer.attn.out_drop.drop_prob for layer in vit.layers]
    assert rates == pytest.approx([0.0, 0.2, 0.4])


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    seed=st.integers(0, 10_000),
)
def test_masked_pixels_do_not_matter(rows, columns, seed):
    vit = make_vit()
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, rows * 8, columns * 8, generator=generator)
    mask = torch.rand(2, rows * columns, generator=generator) < 0.5
    pixels = mask.view(2, 1, rows, columns)
    pixels = pixels.repeat_interleave(8, 2).repeat_interleave(8, 3)
    other = torch.where(pixels, torch.randn(()), x)
    with torch.no_grad():
        one = vit.forward_tokens(x, mask)
        two = vit.forward_tokens(other, mask)
    assert one.shape == (2, 1 + rows * columns, 24)
    assert torch.equal(one, two)


def test_masked_tokens_keep_their_position():
    vit = make_vit()
    x = torch.randn(1, 3, 32, 32)
    embedded = vit.embed(x, torch.ones(1, 16, dtype=torch.bool))
    expected = vit.mask_token + vit.pos_embed[:, 1:]
    torch.testing.assert_close(embedded[:, 1:], expected)


def test_visible_tokens_enter_unchanged():
    vit = make_vit()
    x = torch.randn(1, 3, 32, 32)
    mask = torch.zeros(1, 16, dtype=torch.bool)
    mask[0, 5] = True
    changed = (vit.embed(x, mask) != vit.embed(x)).any(-1)
    assert changed.nonzero().tolist() == [[0, 6]]


def test_mask_token_learns_from_masked_tokens_only():
    vit = make_vit()
    x = torch.randn(2, 3, 32, 32)
    mask = torch.zeros(2, 16, dtype=torch.bool)
    vit.forward_tokens(x, mask).square().sum().backward()
    assert not vit.mask_token.grad.any()
    mask[0, 3] = True
    vit.forward_tokens(x, mask).square().sum().backward()
    assert vit.mask_token.grad.any()


def test_activation_checkpointing_changes_no_gradient():
    grads, saved = [], []
    x = torch.randn(4, 3, 32, 32)
    mask = torch.rand(4, 16) < 0.4
    for with_cp in (False, True):
        vit = make_vit(with_cp=with_cp, drop_path_rate=0.5).train()
        sizes = []
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            loss = vit.forward_tokens(x, mask).square().sum()
        loss.backward()
        grads.append([p.grad for p in vit.parameters()])
        saved.append(sum(sizes))
    for one, two in zip(*grads):
        assert torch.equal(one, two)
    assert saved[1] < saved[0] / 2


def test_intermediate_tokens_are_the_blocks_outputs():
    vit = make_vit(out_type='raw', out_indices=[1, 2])
    x = torch.randn(2, 3, 32, 32)
    raw = vit.intermediate_tokens(x, n=2, norm=False)
    normed = vit.intermediate_tokens(x, n=2)
    assert torch.equal(raw[0], vit(x)[0])
    assert torch.equal(normed[1], vit(x)[1])
    assert torch.equal(normed[1], vit.forward_tokens(x))
    assert torch.equal(normed[0], vit.ln1(raw[0]))


@pytest.mark.parametrize('depth', [1, 3])
def test_last_attention_explains_the_last_block(depth):
    vit = make_vit(arch={**ARCH, 'num_layers': depth})
    x = torch.randn(2, 3, 32, 16)
    seen = {}
    last = vit.layers[-1].attn
    last.proj.register_forward_pre_hook(
        lambda _, inputs: seen.update(mixed=inputs[0])
    )
    last.qkv.register_forward_hook(
        lambda _, inputs, output: seen.update(qkv=output)
    )
    vit.forward_tokens(x)
    attention = vit.last_attention(x)
    assert attention.shape == (2, 3, 9, 9)
    value = seen['qkv'][..., 48:].view(2, 9, 3, 8).transpose(1, 2)
    mixed = (attention @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(mixed, seen['mixed'])


@pytest.mark.parametrize('pos_interpolation', ['size', 'ibot'])
@pytest.mark.parametrize('size', [32, 48])
def test_bfloat16_autocast_trains(size, pos_interpolation):
    vit = make_vit(pos_interpolation=pos_interpolation).train()
    x = torch.randn(2, 3, size, size)
    mask = torch.rand(2, (size // 8) ** 2) < 0.5
    exact = vit.forward_tokens(x, mask)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        tokens = vit.forward_tokens(x, mask)
    assert (tokens - exact).abs().max() < 0.3
    tokens.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in vit.parameters())


def test_a_model_in_bfloat16_stays_there():
    vit = make_vit(pos_interpolation='ibot').to(torch.bfloat16)
    x = torch.randn(2, 3, 48, 48, dtype=torch.bfloat16)
    tokens = vit.forward_tokens(x, torch.rand(2, 36) < 0.5)
    assert tokens.dtype == torch.bfloat16


def test_compiles_without_a_graph_break():
    vit = make_vit(pos_interpolation='ibot', drop_path_rate=0.1).train()
    torch._dynamo.reset()
    # torch 2.4 breaks where it does not know the factor of an interpolation
    dynamic = None if release(torch.__version__) >= (2, 5) else False
    compiled = torch.compile(
        vit.forward_tokens, backend='eager', fullgraph=True, dynamic=dynamic
    )
    for side in (4, 2):
        x = torch.randn(2, 3, side * 8, side * 8)
        mask = torch.rand(2, side * side) < 0.5
        for arguments in ((x, mask), (x,)):
            torch.manual_seed(0)
            expected = vit.forward_tokens(*arguments)
            torch.manual_seed(0)
            torch.testing.assert_close(compiled(*arguments), expected)


def test_start_values_are_the_official_ones():
    torch.manual_seed(0)
    vit = MODELS.build(
        {
            'type': 'MaskedVisionTransformer',
            'arch': {**ARCH, 'embed_dims': 60},
            'img_size': 64,
            'patch_size': 8,
        }
    )
    conv = vit.patch_embed.projection.weight.clone()
    vit.init_weights()
    assert torch.equal(conv, vit.patch_embed.projection.weight)
    tables = [vit.pos_embed, vit.cls_token]
    for layer in vit.layers:
        for linear in (
            layer.attn.qkv,
            layer.attn.proj,
            layer.ffn.layers[0][0],
            layer.ffn.layers[1],
        ):
            tables.append(linear.weight)
            assert not linear.bias.any()
    for table in tables:
        assert table.std().item() == pytest.approx(0.02, rel=0.25)
    assert not vit.mask_token.any()


@pytest.mark.parametrize('as_list', [False, True])
def test_pretrained_weights_are_loaded(tmp_path, as_list):
    """Of both networks the teacher's; the mask token keeps its start."""
    path = tmp_path / 'pretraining.pth'
    student, teacher = make_vit(1), make_vit(2, mask_token=False)
    state = {f'student.{k}': v for k, v in student.state_dict().items()}
    for name, value in teacher.state_dict().items():
        state[f'teacher.backbone.{name}'] = value
    torch.save({'state_dict': state}, path)
    for prefix, source in ((None, teacher), ('student', student)):
        init_cfg = {'type': 'Pretrained', 'checkpoint': str(path)}
        if prefix:
            init_cfg['prefix'] = prefix
        vit = build(init_cfg=[init_cfg] if as_list else init_cfg)
        before = vit.init_cfg
        vit.init_weights()
        assert vit.init_cfg == before
        loaded = vit.state_dict()
        for name, value in source.state_dict().items():
            assert torch.equal(loaded.pop(name), value)
        assert not any(value.any() for value in loaded.values())


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_pretrained_weights_that_are_refused(tmp_path):
    path, marker = tmp_path / 'file.pth', tmp_path / 'marker'
    init_cfg = {'type': 'Pretrained', 'checkpoint': str(path)}
    state = make_vit().state_dict()
    torch.save({'state_dict': state, 'meta': Touch(marker)}, path)
    with pytest.raises(UnsafeCheckpoint, match='file.pth was not loaded'):
        build(init_cfg=init_cfg).init_weights()
    assert not marker.exists()
    torch.save(state, path)
    with pytest.raises(CheckpointMismatch, match='width 24;.*width 48'):
        wider = {**ARCH, 'embed_dims': 48}
        build(init_cfg=init_cfg, arch=wider).init_weights()
    with pytest.raises(CheckpointError, match=r"init_cfg.prefix is 'neck\.'"):
        build(init_cfg={**init_cfg, 'prefix': 'neck.'}).init_weights()


def test_table_of_another_size_is_interpolated_on_loading():
    """The features stay those that the source gives at this size."""
    source = make_vit(pos_interpolation='ibot')
    target = make_vit(seed=1, pos_interpolation='ibot', img_size=(48, 64))
    target.load_state_dict(source.state_dict())
    x = torch.randn(2, 3, 48, 64)
    torch.testing.assert_close(
        target.forward_tokens(x), source.forward_tokens(x)
    )


def test_frozen_stages_stay_in_evaluation_mode():
    vit = make_vit(frozen_stages=2, drop_path_rate=0.9)
    assert vit.train() is vit
    modes = [layer.training for layer in vit.layers]
    assert modes == [False, False, True]


def test_layer_depth_of_the_mask_token_is_that_of_the_stem():
    vit = make_vit()
    assert vit.get_layer_depth('mask_token') == (0, 5)
    assert vit.get_layer_depth('backbone.mask_token', 'backbone.') == (0, 5)
    assert vit.get_layer_depth('layers.1.ln1.weight') == (2, 5)


@pytest.mark.parametrize(
    ('arch', 'width', 'depth', 'heads'),
    [
        ('deit-tiny', 192, 12, 3),
        ('deit-small', 384, 12, 6),
        ('base', 768, 12, 12),
        ('large', 1024, 24, 16),
    ],
)
def test_published_architectures(arch, width, depth, heads):
    with torch.device('meta'):
        vit = MODELS.build({'type': 'MaskedVisionTransformer', 'arch': arch})
    assert vit.embed_dims == width
    assert len(vit.layers) == depth
    assert vit.layers[0].attn.num_heads == heads


def test_out_indices_of_the_caller_are_not_changed():
    indices = [0, -1]
    vit = make_vit(out_indices=indices)
    assert indices == [0, -1]
    assert len(vit(torch.randn(1, 3, 32, 32))) == 2


@pytest.mark.parametrize(
    ('kwargs', 'words'),
    [
        ({'pos_interpolation': 'linear'}, "pos_interpolation='linear'"),
        ({'attention': 'flash'}, "attention='flash'"),
        ({'img_size': 36}, 'height 36 is not divisible by the patch size 8'),
        ({'arch': {**ARCH, 'num_heads': 5}}, '5 heads do not divide'),
        (
            {'pos_interpolation': 'msn', 'img_size': (32, 16)},
            'square native grid',
        ),
    ],
    ids=str,
)
def test_wrong_options_are_named(kwargs, words):
    with pytest.raises(ValueError, match=words):
        make_vit(**kwargs)


def test_wrong_inputs_are_named():
    vit = make_vit()
    x = torch.randn(2, 3, 32, 32)
    with pytest.raises(ValueError, match='32x30 pixels: the width 30'):
        vit(x[..., :30])
    with pytest.raises(ValueError, match=r'shape \(2, 16\)'):
        vit.forward_tokens(x, torch.zeros(2, 4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match='not torch.float32'):
        vit.forward_tokens(x, torch.zeros(2, 16))
    with pytest.raises(ValueError, match='n=4 blocks .* has 3'):
        vit.intermediate_tokens(x, n=4)
    bare = make_vit(mask_token=False)
    assert 'mask_token' not in bare.state_dict()
    with pytest.raises(ValueError, match='mask_token=True'):
        bare.forward_tokens(x, torch.zeros(2, 16, dtype=torch.bool))
