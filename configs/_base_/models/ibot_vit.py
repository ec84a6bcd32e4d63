_target = dict(type='CentreSharpen', momentum=0.9, temperature=0.04)

model = dict(
    type='IBOT',
    student=dict(
        type='MaskedVisionTransformer', arch='deit-small', patch_size=16,
        drop_path_rate=0.1, pos_interpolation='ibot'),
    head=dict(type='IBOTHead', out_dim=8192, share='all'),
    teacher=dict(type='EMATeacher'),
    objectives=dict(
        cls=dict(
            type='ClsDistillation',
            normalization=_target,
            loss=dict(type='CrossViewCrossEntropy', temperature=0.1)),
        patch=dict(
            type='MaskedPatchDistillation',
            normalization=_target,
            loss=dict(type='SoftCrossEntropy', temperature=0.1))))
del _target
