# Weighted k-NN on the teacher's [CLS] tokens, while training and in test.py.
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    dataset=dict(
        type='ImageNet',
        data_root='data/imagenet/',
        split='val',
        pipeline=[
            dict(type='LoadImage'),
            dict(type='ResizeShortEdge', scale=256, interpolation='bicubic'),
            dict(type='CenterCrop', crop_size=224),
            dict(type='PackInputs'),
        ]))
# The bank is the training set; what is not said here is as above.
val_cfg = dict(
    type='KNNLoop', bank_dataloader=dict(dataset=dict(split='train')))
val_evaluator = dict(
    type='KNNAccuracy', k=(10, 20, 100, 200), temperature=0.07)

test_dataloader = val_dataloader
test_cfg = val_cfg
test_evaluator = val_evaluator
