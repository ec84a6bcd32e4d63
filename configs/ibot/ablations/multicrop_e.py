# Fig. 7: (e) as (c), with larger local crops.
_base_ = './multicrop_c.py'

train_dataloader = dict(
    dataset=dict(views=dict(local=dict(scale=(0.2, 0.4)))))
