# Without local crops: two global ones of scale 0.14 to 1, one mask ratio.
_base_ = './ibot_vit-base-p16_16xb64-amp-coslr-400e_in1k.py'

train_dataloader = dict(
    dataset=dict(
        views=dict(
            global1=dict(scale=(0.14, 1.0)),
            global2=dict(scale=(0.14, 1.0)),
            local=None),
        mask=dict(ratio=0.3, variance=0.2)))
