# Fig. 7: (d) as (b), with unmasked global crops for the [CLS] loss.
_base_ = './multicrop_b.py'

model = dict(
    unmasked_global=True,
    objectives=dict(cls=dict(student_groups=('global_unmasked', 'local'))))
