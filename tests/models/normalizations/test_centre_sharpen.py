import pytest
import torch
from mmpretrain.registry import MODELS

from mim_plugins.models import CentreSharpen


def random_logits(seed, rows, width):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


LOGITS = torch.tensor([[1.0, 0.5, 0.0], [0.2, 0.4, -0.6]])
CENTRE = torch.tensor([0.9, 0.1, 0.0])


def build(**options):
    target = MODELS.build({'type': 'CentreSharpen', 'dim': 3, **options})
    target.centre.copy_(CENTRE)
    return target


@pytest.mark.parametrize(
    ('options', 'expected'),
    [
        ({}, (LOGITS - CENTRE) / 0.04),
        ({'temperature': 0.5}, (LOGITS - CENTRE) / 0.5),
        ({'centring': False}, LOGITS / 0.04),
        ({'sharpening': False}, (LOGITS - CENTRE) / 0.1),
        (
            {'sharpening': False, 'student_temperature': 0.3},
            (LOGITS - CENTRE) / 0.3,
        ),
        ({'centring': False, 'sharpening': False}, LOGITS / 0.1),
    ],
)
def test_centring_and_sharpening_apart(options, expected):
    torch.testing.assert_close(build(**options)(LOGITS), expected.softmax(-1))


def test_hard_targets_with_and_without_centring():
    centred = build(hard=True)(LOGITS)
    assert centred.tolist() == [[0, 1, 0], [0, 1, 0]]
    plain = build(hard=True, centring=False)(LOGITS)
    assert plain.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_the_temperature_can_be_set_at_any_time():
    target = build()
    target.temperature = 2.0
    expected = ((LOGITS - CENTRE) / 2).softmax(-1)
    torch.testing.assert_close(target(LOGITS), expected)


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_targets_are_float32_at_least_without_gradient(given, expected):
    logits = LOGITS.to(given).requires_grad_()
    with torch.autocast('cpu', torch.bfloat16):
        target = build().to(expected)(logits)
    assert target.dtype == expected
    assert not target.requires_grad
    torch.testing.assert_close(target.sum(-1), torch.ones(2, dtype=expected))


def test_the_centre_moves_by_its_momentum_only_in_a_step():
    target = build(momentum=0.7)
    target.observe(LOGITS)
    torch.testing.assert_close(target.centre, CENTRE)
    target.step()
    expected = 0.7 * CENTRE + 0.3 * LOGITS.mean(0)
    torch.testing.assert_close(target.centre, expected)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_several_observations_are_one_of_all_rows(dtype):
    first, second = random_logits(0, 4, 6), random_logits(1, 10, 6)
    first, second = first.to(dtype), second.to(dtype)
    apart, mean, together = (CentreSharpen(6).to(dtype) for _ in range(3))
    apart.observe(first.view(2, 2, 6))
    apart.observe(second)
    mean.observe_mean(first.mean(0), 4)
    mean.observe_mean(second.mean(0), 10)
    together.observe(torch.cat([first, second]))
    for target in (apart, mean, together):
        target.step()
    assert together.centre.dtype == dtype
    assert together.centre.abs().min() > 0
    torch.testing.assert_close(apart.centre, together.centre)
    torch.testing.assert_close(mean.centre, together.centre)


def test_half_precision_logits_are_averaged_in_the_type_of_the_centre():
    # two neighbours in bfloat16, whose mean is not a bfloat16 number
    logits = torch.tensor([[1.0] * 3, [1.0078125] * 3], dtype=torch.bfloat16)
    target = CentreSharpen(3, momentum=0.0)
    target.observe(logits)
    target.step()
    assert torch.equal(target.centre, torch.full((3,), 1.00390625))


def test_a_step_without_observation_changes_nothing():
    target = build()
    target.step()
    assert torch.equal(target.centre, CENTRE)
    target.observe(LOGITS)
    target.step()
    moved = target.centre.clone()
    assert not torch.equal(moved, CENTRE)
    target.step()
    assert torch.equal(target.centre, moved)


def test_the_centre_is_saved():
    other = CentreSharpen(3)
    other.load_state_dict(build().state_dict())
    assert torch.equal(other.centre, CENTRE)
    assert not list(other.parameters())


@pytest.mark.parametrize(
    ('options', 'sentence'),
    [
        ({'momentum': 1.5}, r'momentum=1.5 must lie in \[0, 1\]'),
        ({'temperature': 0.0}, 'temperature=0.0 must be above zero'),
        (
            {'student_temperature': -1},
            'student_temperature=-1 must be above zero',
        ),
    ],
)
def test_impossible_numbers(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        CentreSharpen(3, **options)


@pytest.mark.parametrize('value', [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_leave_the_centre(value):
    target = build(momentum=0.5)
    target.observe(LOGITS)
    bad = LOGITS.clone()
    bad[1, 2] = value
    target.observe(bad)
    target.step()
    assert torch.equal(target.centre, CENTRE)
    target.observe(LOGITS)
    target.step()
    torch.testing.assert_close(target.centre, (CENTRE + LOGITS.mean(0)) / 2)


def test_a_flag_keeps_the_centre():
    target = build(momentum=0.5)
    target.observe(LOGITS)
    target.step(torch.tensor(True))
    assert torch.equal(target.centre, CENTRE)
    target.observe(3 * LOGITS)  # what was observed before is gone
    target.step(torch.tensor(False))
    expected = (CENTRE + 3 * LOGITS.mean(0)) / 2
    torch.testing.assert_close(target.centre, expected)
