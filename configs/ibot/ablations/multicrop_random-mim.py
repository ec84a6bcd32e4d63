# Fig. 7: (b) with masks or none for each image, the default.
_base_ = './multicrop_b.py'

train_dataloader = dict(
    dataset=dict(
        mask=dict(ratio=[0.0, 0.3], variance=[0.0, 0.2], per='image')))
