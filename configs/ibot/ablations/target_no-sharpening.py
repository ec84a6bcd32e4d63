# Table 18: centring only.
_base_ = './baseline.py'

model = dict(
    objectives=dict(
        patch=dict(normalization=dict(sharpening=False))))
