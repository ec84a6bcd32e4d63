# Table 4: the online tokenizer with a head each for [CLS] and patches.
_base_ = './baseline.py'

model = dict(head=dict(share='none'))
