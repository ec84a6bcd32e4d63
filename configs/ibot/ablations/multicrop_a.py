# Fig. 7: (a) two global crops, always masked.
_base_ = './baseline.py'

train_dataloader = dict(dataset=dict(mask=dict(variance=0.2)))
