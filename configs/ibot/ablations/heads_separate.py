# Table 4, Appendix E: a head each for [CLS] and patches.
_base_ = './baseline.py'

model = dict(head=dict(share='none'))
