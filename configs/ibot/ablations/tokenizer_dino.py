# Table 4: a standalone DINO as the tokenizer, no [CLS] loss.
_base_ = './tokenizer_dino_cls_shared-head.py'

model = dict(objectives=dict(cls=None))
default_hooks = dict(schedules=dict(schedules=dict(cls_temperature=None)))
