# Appendix E: the patch loss weighs 0.5.
_base_ = './baseline.py'

model = dict(objectives=dict(patch=dict(weight=0.5)))
