# iBOT's released ViT-S/16 run: 800 epochs, two crops of 224 and ten of 96.
_base_ = [
    '../_base_/models/ibot_vit.py', '../_base_/datasets/imagenet_ibot.py',
    '../_base_/schedules/ibot_adamw.py'
]

# The length of the prototypes is learned for ViT-S only.
model = dict(head=dict(norm_last_layer=False))
