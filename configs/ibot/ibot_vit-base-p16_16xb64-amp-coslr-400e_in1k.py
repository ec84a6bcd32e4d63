# The published settings name no number of epochs for ViT-B: 400 is ours.
# They suggest a clipping norm of 0.3 to 1.0 for models larger than ViT-S.
_base_ = './ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py'

model = dict(student=dict(arch='base'), head=dict(norm_last_layer=True))
optim_wrapper = dict(clip=dict(max_norm=0.3))
train_cfg = dict(max_epochs=400)
