# Table 4: DINO and BEiT as two tasks, shared head.
_base_ = './baseline.py'

model = dict(
    head=dict(out_dim=8192),
    objectives=dict(
        patch=dict(
            _delete_=True,
            type='TokenPrediction',
            # The encoder's state dict, in the names of mmpretrain's DALL-E.
            tokenizer=dict(
                type='DALLETokenizer',
                checkpoint='checkpoints/dalle_encoder.pth'),
            loss=dict(type='SoftCrossEntropy', temperature=0.1))))
default_hooks = dict(
    schedules=dict(
        schedules=dict(patch_temperature=None)))
