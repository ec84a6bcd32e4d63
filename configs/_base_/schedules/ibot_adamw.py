_base_ = '../default_runtime.py'

# iBOT's optimizer and schedules; the number of epochs is the run's own.
optim_wrapper = dict(
    type='PretrainOptimWrapper',
    precision='auto',
    optimizer=dict(type='AdamW', lr=5e-4, weight_decay=0.04),
    constructor='PretrainOptimConstructor',
    clip=dict(max_norm=3.0, mode='tensor'))

_temperature = dict(
    type='TemperatureSchedule', warm=0.04, final=0.07, warmup_epochs=30)
default_hooks = dict(
    freeze_last_layer=dict(type='FreezeLastLayerHook', epochs=1),
    schedules=dict(
        type='ScheduleHook',
        schedules=dict(
            lr=dict(
                type='CosineSchedule', base=5e-4, scale_batch=256,
                final=1e-6, warmup_epochs=10),
            weight_decay=dict(type='CosineSchedule', base=0.04, final=0.4),
            teacher_momentum=dict(
                type='CosineSchedule', target='teacher.momentum',
                base=0.996, final=1.0),
            cls_temperature=dict(
                _temperature,
                target='objectives.cls.normalization.temperature'),
            patch_temperature=dict(
                _temperature,
                target='objectives.patch.normalization.temperature'))))

train_cfg = dict(type='PretrainEpochLoop', max_epochs=800, val_interval=10)
del _temperature
