# Table 4: the online tokenizer without the [CLS] loss.
_base_ = './baseline.py'

model = dict(objectives=dict(cls=None))
default_hooks = dict(schedules=dict(schedules=dict(cls_temperature=None)))
