# Appendix E: DINO + pos.: patches matched by position, no masks.
_base_ = './baseline.py'

model = dict(
    objectives=dict(
        patch=dict(
            type='PatchMatching', match='position')))
train_dataloader = dict(dataset=dict(mask=None))
