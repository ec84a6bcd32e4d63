# Appendix E: 4,096 prototypes.
_base_ = './baseline.py'

model = dict(head=dict(out_dim=4096))
