# 1,000 prototypes: the head's assignments are clusters, for unsupervised
# classification of ImageNet-1K.
_base_ = './ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py'

model = dict(head=dict(out_dim=1000))
