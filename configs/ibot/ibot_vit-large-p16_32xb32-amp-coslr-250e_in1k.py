# The published settings name no number of epochs for ViT-L: 250 is ours.
_base_ = './ibot_vit-base-p16_16xb64-amp-coslr-400e_in1k.py'

model = dict(student=dict(arch='large', with_cp=True))
train_dataloader = dict(batch_size=32)
train_cfg = dict(max_epochs=250)
