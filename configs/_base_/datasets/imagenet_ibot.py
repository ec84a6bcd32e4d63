# Two global and ten local crops, block masks on the global ones: the views of
# iBOT's released ViT-S/16 run (scales 0.25 to 1 and 0.05 to 0.25).
_base_ = './imagenet_knn.py'

_jitter = dict(
    brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, prob=0.8)
_global = dict(
    group='global', num=1, size=224, scale=(0.25, 1.0), flip=0.5,
    jitter=_jitter, gray=0.2)

train_dataloader = dict(
    batch_size=64,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type='PassSampler', shuffle=True),
    collate_fn=dict(type='collate_views'),
    dataset=dict(
        type='ViewDataset',
        source=dict(
            type='ImageNet', data_root='data/imagenet/', split='train'),
        views=dict(
            global1=dict(_global, blur=dict(prob=1.0, radius=(0.1, 2.0))),
            global2=dict(
                _global, blur=dict(prob=0.1, radius=(0.1, 2.0)),
                solarize=dict(prob=0.2, threshold=128)),
            local=dict(
                group='local', num=10, size=96, scale=(0.05, 0.25), flip=0.5,
                jitter=_jitter, gray=0.2,
                blur=dict(prob=0.5, radius=(0.1, 2.0)))),
        mask=dict(
            type='BlockMask', patch_size=16, ratio=[0.0, 0.3],
            variance=[0.0, 0.2])))
del _jitter, _global
