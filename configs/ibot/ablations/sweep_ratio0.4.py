# Fig. 12: mask ratio 0.4.
_base_ = './baseline.py'

train_dataloader = dict(dataset=dict(mask=dict(ratio=0.4)))
