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

# Colour jitter and blur made for 224 pixels leave too little of 32: with them
# the [CLS] targets became uniform within eight epochs.
_plain = dict(jitter=None, gray=0.0, blur=None, solarize=None)
train_dataloader = dict(
    batch_size=64,
    num_workers=1,
    pin_memory=False,
    dataset=dict(
        source=dict(
            _delete_=True, type='CustomDataset',
            data_root=data_root + 'train'),
        views=dict(
            global1=dict(_plain, size=32, scale=(0.5, 1.0)),
            global2=dict(_plain, size=32, scale=(0.5, 1.0)),
            local=dict(_plain, num=4, size=16, scale=(0.15, 0.5))),
        mask=dict(patch_size=8)))

_pipeline = [
    dict(type='LoadImage'),
    dict(type='ResizeShortEdge', scale=32, interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=32),
    dict(type='PackInputs'),
]
val_dataloader = dict(
    num_workers=0,
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
    logger=dict(interval=31),
    checkpoint=dict(interval=10, max_keep_ckpts=1),
    schedules=dict(
        schedules=dict(
            lr=dict(base=1e-3, scale_batch=None, warmup_epochs=3),
            teacher_momentum=dict(base=0.99),
            cls_temperature=dict(final=0.04),
            patch_temperature=dict(final=0.04))))

train_cfg = dict(max_epochs=30, val_interval=3)
del _plain, _pipeline
