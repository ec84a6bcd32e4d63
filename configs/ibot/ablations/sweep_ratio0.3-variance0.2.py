# Fig. 12: mask ratio 0.3 with a variance of 0.2.
_base_ = './baseline.py'

train_dataloader = dict(dataset=dict(mask=dict(variance=0.2)))
