import math

import pytest
import torch

from mim_plugins.evaluation.diagnostics import (
    collapse_signature,
    effective_rank,
    feature_deviation,
    feature_statistics,
)


def test_effective_rank_counts_equal_directions():
    features = torch.zeros(6, 5)
    features[0, 0] = features[1, 1] = features[2, 2] = 4
    assert effective_rank(features) == pytest.approx(3, rel=1e-5)


def test_effective_rank_equals_its_definition():
    features = torch.diag(torch.tensor([3.0, 1.0]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(features) == pytest.approx(math.exp(entropy))


def test_effective_rank_of_equal_rows_is_one():
    assert effective_rank(torch.ones(7, 4)) == pytest.approx(1, abs=1e-4)


def test_effective_rank_of_nothing_and_of_nan():
    assert effective_rank(torch.zeros(3, 4)) == 0
    assert torch.isnan(effective_rank(torch.full((3, 4), math.nan)))


def test_deviation_is_one_on_the_sphere_and_zero_when_collapsed():
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(4000, 16, generator=generator) * 7
    assert feature_deviation(spread) == pytest.approx(1, abs=0.02)
    same_direction = torch.rand(9, 1, generator=generator) * torch.ones(1, 16)
    assert feature_deviation(same_direction) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64])
def test_statistics_under_autocast_need_no_gradient(dtype):
    features = torch.randn(8, 4, requires_grad=True)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        found = feature_statistics(features.to(dtype))
    expected = feature_statistics(features.to(dtype).double())
    assert set(found) == {'feature_rank', 'feature_std'}
    for name, value in found.items():
        assert not value.requires_grad
        assert value.dtype in (torch.float32, torch.float64)
        assert value == pytest.approx(float(expected[name]), rel=1e-4)


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r'got shape \(4,\)'):
        feature_statistics(torch.zeros(4))


@pytest.mark.parametrize(
    ('entropy', 'kl', 'used', 'expected'),
    [
        (0.999, 0.001, 0.5, 'uniform'),
        (0.999, 0.001, None, 'uniform'),
        (0.97, 0.001, 0.5, None),
        (0.999, 0.02, 0.5, None),  # the student does not follow
        (0.8, 0.2, 0.5, None),  # ln K at the start of a healthy run
        (0.001, 0.001, 1 / 64, 'single'),
        (0.001, 0.001, 2 / 64, None),
        (0.001, 0.001, None, None),
    ],
)
def test_collapse_signatures(entropy, kl, used, expected):
    limit = math.log(64)
    found = collapse_signature(entropy * limit, kl * limit, 64, used)
    assert found == expected
