# Appendix E: DINO + feat.: patches matched by similarity, no masks.
_base_ = './baseline.py'

# Nothing is masked, so a mask token would be a parameter without a gradient.
model = dict(
    student=dict(mask_token=False),
    objectives=dict(
        patch=dict(
            type='PatchMatching', match='feature')))
train_dataloader = dict(dataset=dict(mask=None))
