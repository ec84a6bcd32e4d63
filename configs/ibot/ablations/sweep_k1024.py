# Appendix E: 1,024 prototypes.
_base_ = './baseline.py'

model = dict(head=dict(out_dim=1024))
