"""Which patches of two views belong together."""

import pytest
import torch
from toy_ibot import TARGET, build_ibot, make_batch, objective_configs

from mim_plugins.models.objectives.patch_matching import (
    match_by_feature,
    match_by_position,
    patch_centres,
)


def boxes(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def test_centres_of_a_flipped_crop_run_from_right_to_left():
    plain = patch_centres(boxes((10, 20, 40, 20, 0)), (1, 2))
    flipped = patch_centres(boxes((10, 20, 40, 20, 1)), (1, 2))
    assert plain[0].tolist() == [[20, 30], [40, 30]]
    assert flipped[0].tolist() == [[40, 30], [20, 30]]


def test_equal_crops_match_patch_by_patch():
    box = boxes((5, 5, 30, 30, 0))
    index, inside = match_by_position(box, box, (3, 3))
    assert index[0].tolist() == list(range(9)) and inside.all()


def test_a_flipped_twin_matches_mirrored_columns():
    index, inside = match_by_position(
        boxes((0, 0, 30, 10, 0)), boxes((0, 0, 30, 10, 1)), (1, 3)
    )
    assert index[0].tolist() == [2, 1, 0] and inside.all()


def test_only_the_overlap_counts():
    mine, theirs = boxes((0, 0, 20, 10, 0)), boxes((10, 0, 20, 10, 0))
    index, inside = match_by_position(mine, theirs, (1, 2))
    assert inside[0].tolist() == [0, 1]
    assert index[0, 1] == 0


@pytest.mark.parametrize('seed', range(5))
def test_position_is_the_nearest_centre(seed):
    """The index is the arg-min of the distance (iBOT, Appendix E)."""
    torch.manual_seed(seed)
    mine, theirs = torch.rand(2, 4, 5) * 20
    for box in (mine, theirs):
        box[:, 2:4] += 10
        box[:, 4] = (box[:, 4] > 10).float()
    index, inside = match_by_position(mine, theirs, (3, 4))
    a, b = patch_centres(mine, (3, 4)), patch_centres(theirs, (3, 4))
    distance = torch.cdist(a, b)
    got = distance.gather(2, index[..., None])[..., 0]
    keep = inside.bool()
    torch.testing.assert_close(got[keep], distance.min(-1).values[keep])


def test_feature_matching_finds_permuted_tokens():
    tokens = torch.randn(2, 6, 8)
    order = torch.randperm(6)
    index = match_by_feature(tokens[:, order] * 3, tokens)
    assert torch.equal(index, order.expand(2, -1))


@pytest.mark.parametrize('match', ['position', 'feature'])
def test_views_without_a_mask_train_by_matching(match):
    patch = dict(type='PatchMatching', match=match, normalization=TARGET)
    model = build_ibot(objectives=objective_configs(patch=patch))
    loss = model(make_batch(ratio=None), mode='loss')['loss_patch']
    loss.backward()
    assert torch.isfinite(loss) and loss > 0
    model.after_optimizer_step()


def test_crops_that_do_not_overlap_give_zero():
    patch = dict(type='PatchMatching', match='position', normalization=TARGET)
    model = build_ibot(objectives=objective_configs(patch=patch))
    inputs = make_batch(batch=1, ratio=None)
    inputs['boxes']['global'] = boxes((0, 0, 9, 9, 0), (90, 90, 9, 9, 0))
    assert model(inputs, mode='loss')['loss_patch'] == 0


def test_mistakes_are_named():
    patch = dict(type='PatchMatching', match='both', normalization=TARGET)
    with pytest.raises(ValueError, match="match='both'"):
        build_ibot(objectives=objective_configs(patch=patch))
    patch['match'] = 'feature'
    model = build_ibot(objectives=objective_configs(patch=patch, cls=None))
    with pytest.raises(ValueError, match='second view'):
        model(make_batch(views=1, ratio=None), mode='loss')


@pytest.mark.parametrize('match', ['position', 'feature'])
def test_loss_is_the_mean_over_matched_pairs(match):
    """Pair by pair, picture by picture; a twin without overlap counts 0."""
    patch = dict(type='PatchMatching', match=match, normalization=TARGET)
    model = build_ibot(objectives=objective_configs(patch=patch, cls=None))
    inputs = make_batch(batch=2, views=3, ratio=None)
    crops = inputs['boxes']['global'].view(3, 2, 5)
    crops[0, 1, :2] += 500  # the first view of the second picture
    views = inputs['views']['global']
    mine = model.student.forward_tokens(views)[:, 1:]
    theirs = model.teacher.backbone.forward_tokens(views)[:, 1:]
    target = (
        model.objectives['patch']
        .normalization(model.teacher.head.forward_patch(theirs))
        .unflatten(0, (3, 2))
    )
    log_p = (model.head.forward_patch(mine) / 0.1).log_softmax(-1)
    log_p = log_p.unflatten(0, (3, 2))
    terms, entropies = [], []
    for u, v in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]:
        for b in range(2):
            if match == 'position':
                index, inside = match_by_position(
                    crops[v, b, None], crops[u, b, None], (3, 3)
                )
            else:
                tokens = (x.unflatten(0, (3, 2)) for x in (mine, theirs))
                s, t = (x[i, b, None] for x, i in zip(tokens, (v, u)))
                index, inside = match_by_feature(s, t), torch.ones(1, 9)
            index, inside = index[0], inside[0]
            matched = target[u, b][index]
            each = -(matched * log_p[v, b]).sum(-1) * inside
            terms.append(each.sum() / inside.sum().clamp(min=1))
            entropy = -(matched * matched.log()).sum(-1) * inside
            if inside.any():
                entropies.append(entropy.sum() / inside.sum())
    assert (0 in terms) == (match == 'position')
    model.diagnose = True
    parts = model(inputs, mode='loss')
    want = torch.stack(terms).mean()
    torch.testing.assert_close(parts['loss_patch'], want)
    # entropy and KL are of matched tokens, not of pictures that have none
    entropy = torch.stack(entropies).mean()
    torch.testing.assert_close(parts['patch_target_entropy'], entropy)
    torch.testing.assert_close(
        parts['patch_kl'],
        torch.stack(terms).sum().detach() / len(entropies) - entropy,
    )
