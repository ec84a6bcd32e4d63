"""Layer-wise learning rates against the official code (layer_decay.npz)."""

import re

import pytest
from golden_files import golden
from mmpretrain.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS

import mim_plugins  # noqa: F401

Z = golden('layer_decay')
LR, WEIGHT_DECAY = 0.5, 0.25

NAMES = [
    (r'^blocks\.(\d+)\.norm(\d)\.', r'backbone.layers.\1.ln\2.'),
    (r'^blocks\.(\d+)\.mlp\.fc1\.', r'backbone.layers.\1.ffn.layers.0.0.'),
    (r'^blocks\.(\d+)\.mlp\.fc2\.', r'backbone.layers.\1.ffn.layers.1.'),
    (r'^blocks\.(\d+)\.attn\.', r'backbone.layers.\1.attn.'),
    (r'^patch_embed\.proj\.', r'backbone.patch_embed.projection.'),
    (r'^(cls_token|pos_embed)$', r'backbone.\1'),
    (r'^norm\.', r'backbone.ln1.'),
    (r'^fc_norm\.', r'backbone.ln2.'),
    (r'^head\.', r'head.layers.head.'),
]


def our_name(official):
    for pattern, replacement in NAMES:
        if re.match(pattern, official):
            return re.sub(pattern, replacement, official)
    raise KeyError(f'no rule for {official}')


def classifier(hp):
    width = 24
    pooled = hp['mean_pooling']
    return MODELS.build(
        {
            'type': 'ImageClassifier',
            'backbone': {
                'type': 'VisionTransformer',
                'arch': {
                    'embed_dims': width,
                    'num_layers': hp['depth'],
                    'num_heads': 2,
                    'feedforward_channels': 4 * width,
                },
                'img_size': 32,
                'patch_size': 16,
                'out_type': 'avg_featmap' if pooled else 'cls_token',
                'final_norm': not pooled,
            },
            'head': {
                'type': 'VisionTransformerClsHead',
                'num_classes': 10,
                'in_channels': width,
            },
        }
    )


@pytest.mark.parametrize('case', Z.cases('hp'))
def test_layer_decay(case):
    hp = Z.hp(case)
    model = classifier(hp)
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(
        {
            'type': 'LayerDecayConstructor',
            'optim_wrapper_cfg': {
                'optimizer': {
                    'type': 'AdamW',
                    'lr': LR,
                    'weight_decay': WEIGHT_DECAY,
                }
            },
            'paramwise_cfg': {'layer_decay_rate': hp['decay']},
        }
    )
    groups = constructor(model).optimizer.param_groups
    group_of = {p: group for group in groups for p in group['params']}
    ours = {n: group_of.pop(p) for n, p in model.named_parameters()}
    assert not group_of

    names = [our_name(str(n)) for n in Z[f'{case}/names']]
    assert sorted(names) == sorted(ours)
    scales = Z[f'{case}/lr_scale'].tolist()
    decays = Z[f'{case}/weight_decay'].tolist()
    for name, scale, decay in zip(names, scales, decays):
        group = ours[name]
        assert group['lr_mult'] == pytest.approx(scale, abs=1e-12), name
        assert group['lr'] == pytest.approx(LR * scale, abs=1e-12), name
        assert group['decay_mult'] == float(decay), name
        assert group['weight_decay'] == WEIGHT_DECAY * decay, name
