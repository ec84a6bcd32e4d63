# iBOT on a folder of your own: any images, in any sub-folders, no labels.
#   python tools/train.py configs/ibot/ibot_vit-small-p16_own-images.py \\
#       --data-root PATH/TO/IMAGES
_base_ = './ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py'

train_dataloader = dict(
    dataset=dict(
        source=dict(
            _delete_=True,
            type='CustomDataset',
            data_root='data/images/',
            with_label=False)))
val_dataloader = None
val_cfg = None
val_evaluator = None
test_dataloader = None
test_cfg = None
test_evaluator = None
