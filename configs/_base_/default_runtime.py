default_scope = 'mmpretrain'
custom_imports = dict(imports=['mim_plugins'], allow_failed_imports=False)

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=None,  # the ScheduleHook writes lr and weight decay
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    optimizer_step=dict(type='OptimizerStepHook'),
    diagnostics=dict(type='DiagnosticsHook'),
    nmi=dict(type='NMIHook'),
)

env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'),
)

vis_backends = [dict(type='LocalVisBackend'),
                dict(type='TensorboardVisBackend')]
visualizer = dict(type='UniversalVisualizer', vis_backends=vis_backends)
log_processor = dict(window_size=50)

randomness = dict(seed=0)
log_level = 'INFO'
load_from = None
resume = False
