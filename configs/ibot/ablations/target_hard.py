# Table 18: hard targets for patches.
_base_ = './baseline.py'

model = dict(
    objectives=dict(
        patch=dict(normalization=dict(hard=True))))
