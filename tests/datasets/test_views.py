import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as F

from mim_plugins.datasets import ViewAugmentation
from mim_plugins.datasets.transforms import ViewParameters
from mim_plugins.datasets.transforms.colour import ADJUSTMENTS, to_gray

TORCHVISION = {
    'brightness': F.adjust_brightness,
    'contrast': F.adjust_contrast,
    'saturation': F.adjust_saturation,
    'hue': F.adjust_hue,
}
JITTER = {
    'brightness': 0.4,
    'contrast': 0.4,
    'saturation': 0.2,
    'hue': 0.1,
    'prob': 0.8,
}


def noise(height, width, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def draws(augmentation, num, size=(60, 40)):
    rng = np.random.default_rng(0)
    return [augmentation.draw(*size, rng) for _ in range(num)]


@pytest.mark.parametrize('interpolation', ['bicubic', 'bilinear'])
@pytest.mark.parametrize('flip', [False, True])
def test_crop_equals_torchvision(interpolation, flip):
    image = noise(45, 70)
    augmentation = ViewAugmentation((24, 16), interpolation=interpolation)
    parameters = ViewParameters((7, 3, 50, 31), flip, (), False, None, False)
    mode = InterpolationMode(interpolation)
    expected = F.resized_crop(image, 3, 7, 31, 50, (24, 16), mode)
    expected = F.hflip(expected) if flip else expected
    view = augmentation.apply(image, parameters)
    np.testing.assert_array_equal(np.array(view), np.array(expected))


@pytest.mark.parametrize('name', list(ADJUSTMENTS))
@settings(max_examples=40, deadline=None)
@given(
    factor=st.floats(0, 1),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_adjustments_equal_torchvision(name, factor, height, width, seed):
    factor = factor - 0.5 if name == 'hue' else 2 * factor
    image = noise(height, width, seed)
    np.testing.assert_array_equal(
        np.array(ADJUSTMENTS[name](image, factor)),
        np.array(TORCHVISION[name](image, factor)),
    )


def test_every_colour_turns_as_in_torchvision():
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), -1)
    image = Image.fromarray(grid.reshape(18 * 18, 18, 3))
    for factor in (-0.5, -0.1, -0.003, 0.0, 0.05, 0.5):
        np.testing.assert_array_equal(
            np.array(ADJUSTMENTS['hue'](image, factor)),
            np.array(F.adjust_hue(image, factor)),
        )


def test_whole_view_equals_torchvision_ops_in_order():
    image = noise(50, 50, 3)
    jitter = (('hue', 0.05), ('contrast', 1.3), ('brightness', 0.7))
    parameters = ViewParameters((1, 2, 30, 40), True, jitter, True, 1.4, True)
    augmentation = ViewAugmentation(20, solarize={'threshold': 100})
    expected = F.resized_crop(
        image, 2, 1, 40, 30, (20, 20), InterpolationMode.BICUBIC
    )
    expected = F.hflip(expected)
    for name, factor in jitter:
        expected = TORCHVISION[name](expected, factor)
    expected = F.rgb_to_grayscale(expected, 3)
    expected = expected.filter(ImageFilter.GaussianBlur(1.4))
    expected = F.solarize(expected, 100)
    np.testing.assert_array_equal(
        np.array(augmentation.apply(image, parameters)), np.array(expected)
    )


def test_gray_has_three_equal_channels():
    image = noise(8, 8)
    np.testing.assert_array_equal(
        np.array(to_gray(image)), np.array(F.rgb_to_grayscale(image, 3))
    )


@settings(max_examples=80, deadline=None)
@given(
    width=st.integers(1, 600),
    height=st.integers(1, 600),
    low=st.floats(0.01, 1),
    seed=st.integers(0, 2**32),
)
def test_any_image_gives_a_crop_inside_it(width, height, low, seed):
    augmentation = ViewAugmentation(8, scale=(low, 1.0))
    rng = np.random.default_rng(seed)
    left, top, w, h = augmentation.draw(width, height, rng).box
    assert w >= 1 and h >= 1 and left >= 0 and top >= 0
    assert left + w <= width and top + h <= height


@pytest.mark.parametrize('size', [(500, 1), (1, 500), (1, 1), (3, 900)])
def test_thin_images_fall_back_to_the_centre_as_torchvision(size):
    image = noise(size[1], size[0])
    # at least the whole area, so that none of the ten tries fits
    scale = (1.5, 2.0)
    top, left, h, w = RandomResizedCrop.get_params(
        image, scale, [3 / 4, 4 / 3]
    )
    augmentation = ViewAugmentation((16, 24), scale=scale)
    rng = np.random.default_rng(0)
    assert augmentation.draw(*size, rng).box == (left, top, w, h)
    view, box = augmentation(image, rng)
    assert view.shape == (3, 16, 24) and box[:4].tolist() == [left, top, w, h]


def test_crops_are_distributed_as_torchvision():
    """Share of the area, log aspect ratio and position of 4,000 crops."""
    size, scale, num = (120, 90), (0.05, 0.9), 4000
    image = noise(size[1], size[0])
    torch.manual_seed(0)
    theirs = []
    for _ in range(num):
        top, left, h, w = RandomResizedCrop.get_params(
            image, scale, [3 / 4, 4 / 3]
        )
        theirs.append((left, top, w, h))
    ours = [p.box for p in draws(ViewAugmentation(8, scale), num, size)]

    def features(boxes):
        left, top, w, h = np.array(boxes, dtype=float).T
        return np.stack([w * h, np.log(w / h), left + w / 2, top + h / 2])

    for a, b in zip(features(ours), features(theirs)):
        points = np.sort(np.concatenate([a, b]))
        below = [np.searchsorted(np.sort(x), points, 'right') for x in (a, b)]
        distance = np.abs(below[0] - below[1]).max() / num
        # two-sample Kolmogorov-Smirnov, level 1e-4
        assert distance < 2.23 * math.sqrt(2 / num)


def test_crops_reach_every_place():
    """A 3x3 crop of a 5x6 image has 3x4 places, all equally likely."""
    augmentation = ViewAugmentation(8, scale=(0.3, 0.3), ratio=(1, 1))
    boxes = [p.box for p in draws(augmentation, 2400, (5, 6))]
    assert set(boxes) == {(x, y, 3, 3) for x in range(3) for y in range(4)}
    counts = [boxes.count(box) for box in set(boxes)]
    assert min(counts) > 140 and max(counts) < 260


def test_probabilities_and_ranges():
    augmentation = ViewAugmentation(
        8,
        flip=0.3,
        jitter=JITTER,
        gray=0.2,
        blur={'prob': 0.6, 'radius': (0.5, 1.5)},
        solarize={'prob': 0.1},
    )
    drawn = draws(augmentation, 4000)
    shares = {
        'flip': (0.3, [p.flip for p in drawn]),
        'jitter': (0.8, [bool(p.jitter) for p in drawn]),
        'gray': (0.2, [p.gray for p in drawn]),
        'blur': (0.6, [p.blur is not None for p in drawn]),
        'solarize': (0.1, [p.solarize for p in drawn]),
    }
    for name, (prob, seen) in shares.items():
        assert abs(np.mean(seen) - prob) < 0.03, name
    ranges = {
        'brightness': (0.6, 1.4),
        'contrast': (0.6, 1.4),
        'saturation': (0.8, 1.2),
        'hue': (-0.1, 0.1),
    }
    radii = [p.blur for p in drawn if p.blur is not None]
    factors = {'radius': radii}
    ranges['radius'] = (0.5, 1.5)
    for name in ADJUSTMENTS:
        factors[name] = [dict(p.jitter)[name] for p in drawn if p.jitter]
    for name, (low, high) in ranges.items():
        values, margin = np.array(factors[name]), 0.01 * (high - low)
        assert low <= values.min() < low + margin, name
        assert high - margin < values.max() <= high, name
        assert abs(values.mean() - (low + high) / 2) < 3 * margin, name


def test_jitter_comes_in_every_order():
    drawn = draws(ViewAugmentation(8, jitter={**JITTER, 'prob': 1.0}), 2400)
    orders = [tuple(name for name, _ in p.jitter) for p in drawn]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 24
    assert min(counts) > 60 and max(counts) < 145


def test_large_strength_is_cut_at_zero():
    augmentation = ViewAugmentation(8, jitter={'brightness': 1.5})
    factors = [p.jitter[0][1] for p in draws(augmentation, 300)]
    assert min(factors) >= 0 and max(factors) > 2


def test_changing_one_setting_keeps_the_other_draws():
    one = draws(ViewAugmentation(8, jitter=JITTER), 50)
    blur = {'prob': 1.0}
    two = draws(ViewAugmentation(8, jitter=JITTER, blur=blur, gray=1.0), 50)
    assert [p[:3] for p in one] == [p[:3] for p in two]


def test_radius_is_drawn_for_every_view():
    drawn = draws(ViewAugmentation(8, blur={}), 20)
    assert len({p.blur for p in drawn}) == 20


@pytest.mark.parametrize('mode', ['L', 'RGB', 'RGBA', 'P'])
def test_call_takes_any_pil_mode(mode):
    image = noise(20, 30).convert(mode)
    view, box = ViewAugmentation((6, 9))(image, np.random.default_rng(0))
    assert view.shape == (3, 6, 9) and view.dtype == torch.uint8
    assert view.is_contiguous()
    assert box.shape == (5,) and box.dtype == np.float32
    if mode == 'L':
        assert torch.equal(view[0], view[2])


def test_call_takes_arrays_and_repeats_with_the_generator():
    image = noise(20, 30)
    augmentation = ViewAugmentation(8, jitter=JITTER, blur={})
    a, box = augmentation(image, np.random.default_rng(5))
    b, _ = augmentation(np.array(image), np.random.default_rng(5))
    c, _ = augmentation(image, np.random.default_rng(6))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert box[4] in (0, 1)


def test_flip_shows_in_the_box():
    image = noise(16, 16)
    plain = ViewAugmentation(16, scale=(1, 1), ratio=(1, 1), flip=0.0)
    mirrored = ViewAugmentation(16, scale=(1, 1), ratio=(1, 1), flip=1.0)
    a, box_a = plain(image, np.random.default_rng(0))
    b, box_b = mirrored(image, np.random.default_rng(0))
    assert torch.equal(a.flip(2), b)
    assert box_a.tolist() == [0, 0, 16, 16, 0]
    assert box_b.tolist() == [0, 0, 16, 16, 1]


@pytest.mark.parametrize(
    ('settings_', 'error', 'message'),
    [
        ({'size': 0}, ValueError, 'size'),
        ({'size': 8.5}, ValueError, 'size'),
        ({'scale': (0.5, 0.2)}, ValueError, 'scale'),
        ({'scale': (0, 1)}, ValueError, 'scale must be above 0'),
        ({'ratio': 1.0}, ValueError, 'ratio'),
        ({'flip': 1.5}, ValueError, 'flip'),
        ({'gray': -0.1}, ValueError, 'gray'),
        ({'jitter': {'hue': 0.6}}, ValueError, 'jitter.hue'),
        ({'jitter': {'brightnes': 1}}, TypeError, "mean 'brightness'"),
        ({'jitter': {'prob': 2}}, ValueError, 'jitter.prob'),
        ({'blur': {'sigma': 1}}, TypeError, "'sigma' in blur"),
        ({'blur': {'radius': (2, 1)}}, ValueError, 'blur.radius'),
        ({'solarize': {'thresh': 1}}, TypeError, "mean 'threshold'"),
        ({'solarize': {'threshold': 300}}, ValueError, 'threshold'),
        ({'interpolation': 'bicubik'}, TypeError, "mean 'bicubic'"),
    ],
)
def test_wrong_settings_are_refused(settings_, error, message):
    with pytest.raises(error, match=message):
        ViewAugmentation(**{'size': 8, **settings_})
