"""What [CLS] and patch tokens share in the projection head."""

import copy

import pytest
import torch
from toy_ibot import head_config

from mim_plugins.models import IBOTHead


def build(**changes) -> IBOTHead:
    cfg = head_config(in_dim=12, **changes)
    cfg.pop('type')
    return IBOTHead(**cfg)


@pytest.mark.parametrize(
    'share, same_mlp, same_last',
    [
        ('all', True, True),
        ('mlp', True, False),
        ('layers', False, False),
        ('none', False, False),
    ],
)
def test_what_is_shared(share, same_mlp, same_last):
    head = build(share=share)
    patch_mlp = getattr(head, 'patch_mlp', head.mlp)
    assert (patch_mlp is head.mlp) == same_mlp
    assert (head.patch_prototypes is head.last_layer) == same_last
    if share == 'layers':
        assert patch_mlp[0] is head.mlp[0] and patch_mlp[2] is head.mlp[2]
        assert patch_mlp[4] is not head.mlp[4]
    if share == 'none':
        assert patch_mlp[0] is not head.mlp[0]
    cls, patch = head(torch.randn(2, 4, 12))
    assert cls.shape == (2, 10) and patch.shape == (2, 3, 10)
    patch.sum().backward()
    assert (head.mlp[0].weight.grad is None) == (share == 'none')


def test_equal_tokens_get_equal_logits_from_a_shared_head():
    head = build(share='all')
    token = torch.randn(2, 1, 12)
    cls, patch = head(token.expand(-1, 4, -1))
    torch.testing.assert_close(patch, cls[:, None].expand_as(patch))


@pytest.mark.parametrize('num_layers', [1, 2, 3, 4])
@pytest.mark.parametrize('norm', [None, 'bn', 'ln'])
def test_logits_are_cosines(num_layers, norm):
    head = build(num_layers=num_layers, norm=norm)
    cls, patch = head(torch.randn(5, 4, 12))
    assert cls.abs().max() <= 1 + 1e-6 and patch.abs().max() <= 1 + 1e-6
    linear = [m for m in head.mlp if isinstance(m, torch.nn.Linear)]
    norms = {id(m) for m in head.mlp if hasattr(m, 'eps')}
    assert len(linear) == num_layers
    assert len(norms) == (norm is not None and num_layers > 1)


@pytest.mark.parametrize('norm', ['bn', 'ln'])
def test_one_norm_serves_all_hidden_layers(norm):
    head = build(norm=norm)
    assert head.mlp[1] is head.mlp[4]
    names = {name for name, _ in head.named_parameters()}
    assert 'mlp.1.weight' in names and 'mlp.4.weight' not in names


def test_batch_norm_sees_every_token_whatever_their_shape():
    head = build(norm='bn')
    tokens = torch.randn(4, 3, 12)
    rows = head.forward_patch(tokens.flatten(0, 1))
    torch.testing.assert_close(head.forward_patch(tokens).flatten(0, 1), rows)
    hidden = head.mlp[1](head.mlp[0](tokens)).flatten(0, 1)
    torch.testing.assert_close(
        hidden.mean(0), torch.zeros(14), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    'share, expected',
    [
        ('all', {'mlp', 'last_layer'}),
        ('mlp', {'mlp', 'last_layer', 'patch_last_layer'}),
        ('none', {'mlp', 'last_layer', 'patch_last_layer', 'patch_mlp'}),
    ],
)
def test_names_in_the_checkpoint(share, expected):
    state = build(share=share).state_dict()
    assert {name.split('.')[0] for name in state} == expected
    assert state['last_layer.weight'].shape == (10, 8)
    assert state['last_layer.scale'].shape == (10, 1)
    assert {n for n in state if n.startswith('mlp')} == {
        f'mlp.{i}.{leaf}' for i in (0, 2, 4) for leaf in ('weight', 'bias')
    }


def test_first_values():
    head = build(hidden_dim=60, share='none', norm='ln')
    head.init_weights()
    for mlp in (head.mlp, head.patch_mlp):
        assert mlp[3].weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert not mlp[3].bias.any()
    for layer in (head.last_layer, head.patch_last_layer):
        # uniform within 1 / sqrt(8), as torch starts a linear layer
        assert 0.3 < layer.weight.abs().max() <= 8**-0.5
        assert (layer.scale == 1).all()
    assert not torch.equal(head.mlp[0].weight, head.patch_mlp[0].weight)


def test_a_file_named_in_init_cfg_has_the_last_word(tmp_path):
    path = str(tmp_path / 'head.pth')
    saved = build()
    torch.save(saved.state_dict(), path)
    head = build(init_cfg=dict(type='Pretrained', checkpoint=path))
    head.init_weights()
    for name, value in head.state_dict().items():
        assert torch.equal(value, saved.state_dict()[name]), name


def test_prototypes_of_learned_length_scale_the_logits():
    head = build(norm_last_layer=False)
    token = torch.randn(3, 12)
    before = head(token)
    head.last_layer.scale.data.mul_(2)
    torch.testing.assert_close(head(token), 2 * before)
    assert head.last_layer.scale.requires_grad
    assert not build().last_layer.scale.requires_grad


def test_a_copy_is_independent():
    head = build(share='mlp')
    twin = copy.deepcopy(head)
    twin.last_layer.weight.data.zero_().add_(1)
    assert not torch.equal(head.last_layer.weight, twin.last_layer.weight)


@pytest.mark.parametrize(
    'changes, sentence',
    [
        (dict(share='some'), 'share'),
        (dict(patch_out_dim=7), 'share="mlp"'),
        (dict(share='layers', shared_layers=3), 'shared_layers=3'),
        (dict(norm='gn'), "norm='gn'"),
        (dict(num_layers=0), 'num_layers=0'),
    ],
)
def test_mistakes_are_named(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**changes)
