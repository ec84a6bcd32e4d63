# Table 4: a standalone DINO as the tokenizer, no [CLS] loss.
_base_ = './baseline.py'

model = dict(
    head=dict(out_dim=8192),
    objectives=dict(
        cls=None,
        patch=dict(
            _delete_=True,
            type='TokenPrediction',
            tokenizer=dict(
                type='FrozenTokenizer',
                backbone=dict(
                    type='MaskedVisionTransformer', arch='deit-small',
                    patch_size=16, pos_interpolation='ibot'),
                head=dict(
                    type='IBOTHead', out_dim=8192, norm_last_layer=False),
                # A run of ablations/dino.py.
                checkpoint='work_dirs/dino/epoch_300.pth'),
            loss=dict(type='SoftCrossEntropy', temperature=0.1))))
default_hooks = dict(
    schedules=dict(
        schedules=dict(cls_temperature=None, patch_temperature=None)))
