# Appendix E: the first two layers of the MLP are shared.
_base_ = './baseline.py'

model = dict(head=dict(share='layers', shared_layers=2))
