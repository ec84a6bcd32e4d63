# Appendix E: two heads in the student, one in the teacher.
_base_ = './baseline.py'

model = dict(head=dict(share='none'), teacher=dict(head=dict(share='all')))
