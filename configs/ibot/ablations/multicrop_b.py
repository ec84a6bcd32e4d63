# Fig. 7: (b) local crops too, masks on the global ones, always.
_base_ = '../ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py'

train_dataloader = dict(dataset=dict(mask=dict(ratio=0.3, variance=0.2)))
train_cfg = dict(max_epochs=300)
