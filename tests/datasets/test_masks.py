import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mim_plugins.datasets import BlockMask, RandomMask

KINDS = [BlockMask, RandomMask]


def rng_of(seed):
    return np.random.default_rng(seed)


@pytest.mark.parametrize('kind', KINDS)
@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 16),
    width=st.integers(1, 16),
    ratio=st.floats(0, 1),
    seed=st.integers(0, 2**32),
)
def test_any_grid_and_ratio_stay_within_the_target(
    kind, height, width, ratio, seed
):
    mask = kind(16, ratio).generate(height, width, rng_of(seed))
    assert mask.shape == (height, width) and mask.dtype == bool
    assert mask.sum() <= ratio * height * width
    if kind is RandomMask:
        assert mask.sum() == int(ratio * height * width)


def test_single_block_is_smaller_than_the_grid():
    """With one try only, no rectangle spans the grid in any direction."""
    for seed in range(300):
        mask = np.zeros((6, 6), dtype=bool)
        BlockMask(16, 1.0)._add_block(mask, 4, 36, rng_of(seed))
        rows, columns = mask.any(axis=1).sum(), mask.any(axis=0).sum()
        assert rows < 6 and columns < 6
        assert mask.sum() == rows * columns


@pytest.mark.parametrize('kind', KINDS)
def test_every_cell_can_be_masked(kind):
    rng = rng_of(0)
    total = sum(kind(16, 0.3).generate(7, 5, rng) for _ in range(400))
    assert (total > 0).all()


@pytest.mark.parametrize('kind', KINDS)
def test_masks_are_empty_before_the_start_epoch(kind):
    mask = kind(16, 0.5, start_epoch=3)
    assert not mask.generate(8, 8, rng_of(0), epoch=2).any()
    assert mask.generate(8, 8, rng_of(0), epoch=3).any()


def test_list_of_ratios_picks_one_entry():
    mask = RandomMask(16, ratio=[0.0, 0.5], variance=[0.0, 0.25])
    rng = rng_of(0)
    ratios = np.array([mask.draw_ratio(rng) for _ in range(2000)])
    zero = ratios == 0
    assert 0.45 < zero.mean() < 0.55
    rest = ratios[~zero]
    assert 0.25 <= rest.min() < 0.27 and 0.73 < rest.max() <= 0.75


def views_of(num, size=(64, 64)):
    return {'global': [torch.zeros(3, *size, dtype=torch.uint8)] * num}


@pytest.mark.parametrize('per', ['crop', 'image'])
def test_ratio_per_crop_or_per_image(per):
    mask = RandomMask(8, ratio=0.5, variance=0.5, per=per)
    same, equal = [], []
    for seed in range(50):
        results = {'views': views_of(2), 'rng': rng_of(seed), 'epoch': 0}
        a, b = mask(results)['masks']['global']
        same.append(a.sum() == b.sum())
        equal.append((a == b).all())
    assert all(same) if per == 'image' else np.mean(same) < 0.3
    assert np.mean(equal) < 0.2


def test_groups_and_grids():
    mask = BlockMask((8, 16), 0.4, groups=('global', 'local'))
    views = {
        **views_of(2, (64, 32)),
        'local': [torch.zeros(3, 16, 32, dtype=torch.uint8)],
        'other': [torch.zeros(3, 7, 7, dtype=torch.uint8)],
    }
    results = {'views': views, 'rng': rng_of(0), 'epoch': 0}
    masks = mask(results)['masks']
    assert {k: v.shape for k, v in masks.items()} == {
        'global': (2, 8, 2),
        'local': (1, 2, 2),
    }


@pytest.mark.parametrize('size', [(30, 32), (32, 30)])
def test_size_must_be_a_multiple_of_the_patch(size):
    with pytest.raises(ValueError, match='multiple of mask.patch_size'):
        BlockMask(16).grid(size)
    assert BlockMask(16).grid((32, 48)) == (2, 3)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ({'ratio': 0.1, 'variance': 0.2}, 'within \\[0, 1\\]'),
        ({'ratio': 0.9, 'variance': 0.2}, 'within \\[0, 1\\]'),
        ({'ratio': [0.0, 0.3], 'variance': [0.2]}, 'one variance'),
        ({'ratio': []}, 'one variance'),
        ({'per': 'batch'}, "'crop' or 'image'"),
        ({'patch_size': 0}, 'patch_size must be a positive'),
        ({'patch_size': (1, 2, 3)}, 'patch_size must be a positive'),
        ({'min_aspect': 0.0}, 'min_aspect'),
    ],
)
def test_wrong_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BlockMask(**{'patch_size': 16, **arguments})


def test_min_patches_bounds_the_blocks():
    """The first rectangle has about the least area that was asked for."""
    areas = []
    for seed in range(200):
        mask = np.zeros((14, 14), dtype=bool)
        generator = BlockMask(16, min_patches=40)
        areas.append(generator._add_block(mask, 40, 59, rng_of(seed)))
    areas = [a for a in areas if a]
    assert min(areas) > 30 and max(areas) <= 59


def test_repr_names_the_settings():
    assert repr(RandomMask(16, 0.3)).startswith('RandomMask(patch_size=(16')
