# Appendix E: teacher temperature 0.04 for patches.
_base_ = './baseline.py'

default_hooks = dict(
    schedules=dict(schedules=dict(patch_temperature=dict(final=0.04))))
