# Table 4: DINO and BEiT as two tasks, separate heads.
_base_ = './tokenizer_dalle_cls_shared-head.py'

model = dict(head=dict(share='none'))
