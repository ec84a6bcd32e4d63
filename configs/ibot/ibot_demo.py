# A small ViT on the generated demo data, for two CPU cores and ten minutes.
# `bash tools/demo.sh` makes the data and runs this config.
_base_ = [
    '../_base_/models/ibot_vit.py', '../_base_/datasets/imagenet_ibot.py',
    '../_base_/schedules/ibot_adamw.py'
]

data_root = 'data/demo/imagenet/'

model = dict(
    student=dict(
        arch=dict(
            _delete_=True, embed_dims=192, num_layers=4, num_heads=3,
            feedforward_channels=768),
        img_size=32, patch_size=8, drop_path_rate=0.0),
    head=dict(out_dim=256, hidden_dim=512, bottleneck_dim=128))

_source = dict(
    _delete_=True, type='CustomDataset', data_root=data_root + 'train')
train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    pin_memory=False,
    dataset=dict(
        source=_source,
        views=dict(
            global1=dict(size=32, scale=(0.5, 1.0)),
            global2=dict(size=32, scale=(0.5, 1.0)),
            local=dict(num=4, size=16, scale=(0.15, 0.5))),
        mask=dict(patch_size=8)))

_pipeline = [
    dict(type='LoadImage'),
    dict(type='ResizeShortEdge', scale=32, interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=32),
    dict(type='PackInputs'),
]
val_dataloader = dict(
    num_workers=0, persistent_workers=False,
    dataset=dict(
        _delete_=True, type='CustomDataset', data_root=data_root + 'val',
        pipeline=_pipeline))
val_cfg = dict(
    bank_dataloader=dict(
        dataset=dict(_delete_=True, data_root=data_root + 'train')))
val_evaluator = dict(k=(20, ))
test_dataloader = val_dataloader
test_cfg = val_cfg
test_evaluator = val_evaluator

default_hooks = dict(
    freeze_last_layer=dict(epochs=1),
    checkpoint=dict(interval=20, max_keep_ckpts=1),
    schedules=dict(
        schedules=dict(
            lr=dict(base=1e-3, scale_batch=None, warmup_epochs=5),
            teacher_momentum=dict(base=0.99),
            cls_temperature=dict(final=0.04),
            patch_temperature=dict(final=0.04))))

train_cfg = dict(max_epochs=60, val_interval=10)
del _source, _pipeline
