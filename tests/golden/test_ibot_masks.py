"""Masks against statistics of the official iBOT masks."""

import mmpretrain.datasets  # noqa: F401
import numpy as np
import pytest
from golden_files import golden
from mmpretrain.registry import TRANSFORMS

import mim_plugins.datasets  # noqa: F401

z = golden('ibot_masks')
TYPES = {'block': 'BlockMask', 'rand': 'RandomMask'}


@pytest.fixture(scope='module', params=z.cases())
def drawn(request):
    """Case name and as many masks as the official code drew, (n, H, W)."""
    hp = z.hp(request.param)
    generator = TRANSFORMS.build(
        {
            'type': TYPES[request.param.split('/')[0]],
            'patch_size': 16,
            'ratio': hp['ratio'],
            'variance': hp['var'],
        }
    )
    rng = np.random.default_rng(0)
    masks = np.stack(
        [generator.generate(hp['H'], hp['W'], rng) for _ in range(hp['draws'])]
    )
    return request.param, masks


def test_ibot_masks_coverage(drawn):
    case, masks = drawn
    n = len(masks)
    coverage = masks.mean(axis=(1, 2))
    std = float(z[f'{case}/std_coverage'])
    tolerance = 4 * np.sqrt(2) * std / np.sqrt(n) + 1e-12
    expected = float(z[f'{case}/mean_coverage'])
    assert abs(coverage.mean() - expected) <= tolerance
    # spread: standard error of a standard deviation, wide for heavy tails
    assert abs(coverage.std() - std) <= 0.1 * std + 1e-12
    filled = coverage[coverage > 0]
    expected = float(z[f'{case}/mean_coverage_nonzero'])
    tolerance = 4 * np.sqrt(2) * max(filled.std(), 1e-12) / np.sqrt(n / 2)
    assert abs(filled.mean() - expected) <= tolerance + 1e-12


def test_ibot_masks_share_of_empty_masks(drawn):
    case, masks = drawn
    n = len(masks)
    p = float(z[f'{case}/frac_all_zero'])
    empty = (~masks.any(axis=(1, 2))).mean()
    assert abs(empty - p) <= 4 * np.sqrt(2 * p * (1 - p) / n)


def test_ibot_masks_positions(drawn):
    case, masks = drawn
    n = len(masks)
    p = z[f'{case}/position_map'].astype(np.float64)
    assert masks.shape[1:] == p.shape
    limit = 5 * np.sqrt(2 * p * (1 - p) / n)
    assert (np.abs(masks.mean(axis=0) - p) <= limit).all()


def test_ibot_masks_histogram(drawn):
    """Kolmogorov-Smirnov distance of the number of masked cells."""
    case, masks = drawn
    n = len(masks)
    expected = z[f'{case}/histogram']
    counts = np.bincount(masks.sum(axis=(1, 2)), minlength=len(expected))
    assert len(counts) == len(expected)
    distance = np.abs((counts / n).cumsum() - (expected / n).cumsum()).max()
    assert distance < 0.04


def test_ibot_masks_never_exceed_the_target(drawn):
    case, masks = drawn
    hp = z.hp(case)
    highest = np.max(np.add(hp['ratio'], hp['var'])) * hp['H'] * hp['W']
    assert masks.sum(axis=(1, 2)).max() <= highest


def test_ibot_masks_neighbours(drawn):
    """P(right neighbour masked | cell masked) tells blocks from noise."""
    case, masks = drawn
    here, right = masks[:, :, :-1], masks[:, :, 1:]
    pairs = (here & right).sum(axis=(1, 2))
    cells = here.sum(axis=(1, 2))
    share = pairs.sum() / cells.sum()
    # delta method: standard error of a ratio of sums over masks
    residual = pairs - share * cells
    error = residual.std() * np.sqrt(len(masks)) / cells.sum()
    expected = float(z[f'{case}/right_neighbour_masked'])
    assert abs(share - expected) <= 5 * np.sqrt(2) * error
