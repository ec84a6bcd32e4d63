# Appendix D: crops divide at a scale of 0.25.
_base_ = '../ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py'

train_dataloader = dict(
    dataset=dict(
        views=dict(
            global1=dict(scale=(0.25, 1.0)),
            global2=dict(scale=(0.25, 1.0)),
            local=dict(scale=(0.05, 0.25)))))
train_cfg = dict(max_epochs=300)
