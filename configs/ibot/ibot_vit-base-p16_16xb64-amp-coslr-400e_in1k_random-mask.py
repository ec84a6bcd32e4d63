# Random instead of block masks.
_base_ = './ibot_vit-base-p16_16xb64-amp-coslr-400e_in1k.py'

train_dataloader = dict(dataset=dict(mask=dict(type='RandomMask')))
