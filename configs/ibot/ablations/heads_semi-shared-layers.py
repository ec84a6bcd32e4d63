# Appendix E: two shared layers in the student, one head in the teacher.
_base_ = './baseline.py'

model = dict(
    head=dict(share='layers', shared_layers=2),
    teacher=dict(head=dict(share='all')))
