default_scope = 'mmpretrain'
custom_imports = dict(imports=['mim_plugins'], allow_failed_imports=False)

default_hooks = dict(
    runtime_info=dict(type='DeferredRuntimeInfoHook'),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=None,  # the ScheduleHook writes lr and weight decay
    checkpoint=dict(
        type='AtomicCheckpointHook', interval=1, max_keep_ckpts=3),
    start_weights=dict(type='StartWeightsHook'),
    checkpoint_fit=dict(type='CheckpointFitHook'),
    preemption=dict(type='PreemptionHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    iteration_seed=dict(type='IterationSeedHook'),
    optimizer_step=dict(type='OptimizerStepHook'),
    non_finite=dict(type='NonFiniteHook'),
    diagnostics=dict(type='DiagnosticsHook'),
    nmi=dict(type='NMIHook'),
    unreadable=dict(type='UnreadableImagesHook', max_share=0.01),
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
