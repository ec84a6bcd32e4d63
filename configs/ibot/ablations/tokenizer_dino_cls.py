# Table 4: a standalone DINO as tokenizer, [CLS] loss, separate heads.
_base_ = './tokenizer_dino_cls_shared-head.py'

model = dict(head=dict(share='none'))
