# Appendix E: one MLP, a layer of prototypes each.
_base_ = './baseline.py'

model = dict(head=dict(share='mlp'))
