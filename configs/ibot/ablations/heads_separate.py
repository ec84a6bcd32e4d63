# Appendix E: two whole heads (vanilla).
_base_ = './baseline.py'

model = dict(head=dict(share='none'))
