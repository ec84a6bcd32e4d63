# Fig. 7: (c) as (b), with masks on local crops.
_base_ = './multicrop_b.py'

train_dataloader = dict(
    dataset=dict(
        views=dict(local=dict(scale=(0.05, 0.4))),
        mask=dict(groups=('global', 'local'))))
