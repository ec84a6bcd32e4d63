# Fig. 7, Fig. 12: (a) two global crops, mask ratio 0.3 with a variance of 0.2.
_base_ = './baseline.py'

train_dataloader = dict(dataset=dict(mask=dict(variance=0.2)))
