# Appendix E: momentum 0.999 of the patches' centre.
_base_ = './baseline.py'

model = dict(
    objectives=dict(
        patch=dict(normalization=dict(momentum=0.999))))
