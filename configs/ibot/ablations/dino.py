# Sec. 4.3: DINO alone: no masked image modelling.
_base_ = './baseline.py'

# Nothing is masked, so a mask token would be a parameter without a gradient.
model = dict(
    student=dict(mask_token=False), objectives=dict(patch=None))
train_dataloader = dict(dataset=dict(mask=None))
default_hooks = dict(
    schedules=dict(schedules=dict(patch_temperature=None)))
