# Appendix E: 16,384 prototypes.
_base_ = './baseline.py'

model = dict(head=dict(out_dim=16384))
