# Table 18: sharpening only.
_base_ = './baseline.py'

model = dict(
    objectives=dict(
        patch=dict(normalization=dict(centring=False))))
