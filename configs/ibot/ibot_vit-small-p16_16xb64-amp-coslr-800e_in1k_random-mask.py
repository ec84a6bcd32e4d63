# Random instead of block masks.
_base_ = './ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py'

train_dataloader = dict(dataset=dict(mask=dict(type='RandomMask')))
