# Table 4: DALL-E's encoder as the tokenizer, no [CLS] loss.
_base_ = './tokenizer_dalle_cls_shared-head.py'

model = dict(objectives=dict(cls=None))
default_hooks = dict(schedules=dict(schedules=dict(cls_temperature=None)))
