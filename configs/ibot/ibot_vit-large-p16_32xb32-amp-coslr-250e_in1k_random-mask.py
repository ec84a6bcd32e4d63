# Random instead of block masks.
_base_ = './ibot_vit-large-p16_32xb32-amp-coslr-250e_in1k.py'

train_dataloader = dict(dataset=dict(mask=dict(type='RandomMask')))
