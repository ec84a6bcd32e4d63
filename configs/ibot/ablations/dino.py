# Sec. 4.3: DINO alone: no masked image modelling.
_base_ = './baseline.py'

model = dict(objectives=dict(patch=None))
train_dataloader = dict(dataset=dict(mask=None))
default_hooks = dict(
    schedules=dict(schedules=dict(patch_temperature=None)))
