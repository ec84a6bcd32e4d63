# Sec. 4.3: ViT-S/16, 300 epochs, two global crops, mask ratio 0.3.
_base_ = '../ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k_no-local.py'

# The variance of the ratio is not stated for the ablations.
train_dataloader = dict(dataset=dict(mask=dict(ratio=0.3, variance=0.0)))
train_cfg = dict(max_epochs=300)
