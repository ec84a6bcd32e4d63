# Appendix E: the patch loss weighs 2.0.
_base_ = './baseline.py'

model = dict(objectives=dict(patch=dict(weight=2.0)))
