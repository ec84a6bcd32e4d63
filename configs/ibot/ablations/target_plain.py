# Table 18: neither centring nor sharpening.
_base_ = './baseline.py'

model = dict(
    objectives=dict(
        patch=dict(normalization=dict(centring=False, sharpening=False))))
