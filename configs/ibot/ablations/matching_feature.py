# Appendix E: DINO + feat.: patches matched by similarity, no masks.
_base_ = './baseline.py'

model = dict(
    objectives=dict(
        patch=dict(
            type='PatchMatching', match='feature')))
train_dataloader = dict(dataset=dict(mask=None))
