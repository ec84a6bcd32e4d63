import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import RandomResizedCrop
from toy_pictures import assert_equal_up_to_rounding, picture

from mim_plugins.datasets import ViewAugmentation
from mim_plugins.datasets.transforms import ViewParameters
from mim_plugins.datasets.transforms.colour import ADJUSTMENTS
from mim_plugins.datasets.transforms.views import make_views
from mim_plugins.testing.literal_views import literal_view

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


PLAIN = ViewParameters((0, 0, 1, 1), False, (), False, None, False)
IBOT = {
    'global1': {'size': 224, 'gray': 0.2, 'blur': {}},
    'global2': {
        'size': 224,
        'gray': 0.2,
        'blur': {'prob': 0.1},
        'solarize': {'prob': 0.2},
    },
    'local': {
        'size': 96,
        'scale': (0.05, 0.25),
        'gray': 0.2,
        'blur': {'prob': 0.5},
    },
}


@pytest.mark.parametrize('interpolation', ['bicubic', 'bilinear'])
@pytest.mark.parametrize('flip', [False, True])
@settings(max_examples=15)
@given(
    left=st.integers(0, 60),
    top=st.integers(0, 60),
    width=st.integers(30, 140),
    height=st.integers(30, 140),
    seed=st.integers(0, 1000),
)
def test_crop_equals_torchvision(
    interpolation, flip, left, top, width, height, seed
):
    image = picture(200, 200, seed)
    augmentation = ViewAugmentation((64, 80), interpolation=interpolation)
    box = (left, top, width, height)
    parameters = PLAIN._replace(box=box, flip=flip)
    view = augmentation.apply(image, parameters)
    expected = literal_view(
        Image.fromarray(image), (64, 80), parameters, interpolation
    )
    assert_equal_up_to_rounding(view, expected)


@pytest.mark.parametrize('name', list(IBOT))
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 3.0, 8.0, 20.0])
)
def test_whole_views_equal_torchvision(name, seed, noise):
    """Views of the iBOT configs, with all that happens to be drawn.

    Pillow's hue has 255 steps. So where a level differs by one before, it may
    differ by six after, in a few pixels of strong colour. Crops are cut to be
    no taller than wide, for which all releases of Pillow agree.
    """
    image = picture(375, 500, seed, noise)
    augmentation = ViewAugmentation(**IBOT[name], jitter=JITTER)
    parameters = augmentation.draw(500, 375, np.random.default_rng(seed))
    left, top, width, height = parameters.box
    box = (left, top, width, min(width, height))
    parameters = parameters._replace(box=box)
    expected = literal_view(
        Image.fromarray(image), augmentation.size, parameters
    )
    view = augmentation.apply(image, parameters)
    difference = np.abs(view.astype(int) - np.asarray(expected))
    assert difference.mean() <= 0.5
    assert (difference.max(axis=-1) <= 4).mean() >= 0.997


def test_operations_come_in_the_order_of_torchvision():
    """Where none may change places with the next without being seen."""
    image = picture(50, 50, 3)
    jitter = (('saturation', 1.9), ('contrast', 1.8), ('brightness', 0.8))
    parameters = ViewParameters((1, 2, 30, 40), True, jitter, True, 1.4, True)
    expected = literal_view(Image.fromarray(image), (20, 20), parameters)
    view = ViewAugmentation(20).apply(image, parameters).astype(int)
    assert np.abs(view - np.asarray(expected)).max() <= 4


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


def test_the_tensor_holds_the_applied_view():
    image = picture(20, 30)
    augmentation = ViewAugmentation((8, 12), jitter=JITTER, blur={}, gray=0.5)
    for seed in range(6):
        view, box = augmentation(image, np.random.default_rng(seed))
        drawn = augmentation.draw(30, 20, np.random.default_rng(seed))
        expected = augmentation.apply(image, drawn)
        assert expected.shape == (8, 12, 3)
        np.testing.assert_array_equal(view.permute(1, 2, 0), expected)
        assert box.tolist() == [*drawn.box, drawn.flip]


def test_several_views_are_those_made_one_after_the_other():
    image = picture(40, 50)
    augmentations = [
        ViewAugmentation(8, jitter=JITTER),
        *[ViewAugmentation(16, blur={})] * 2,
    ]
    together = make_views(image, augmentations, np.random.default_rng(1))
    rng = np.random.default_rng(1)
    for augmentation, (view, box) in zip(augmentations, together):
        alone = augmentation(image, rng)
        assert torch.equal(view, alone[0])
        np.testing.assert_array_equal(box, alone[1])


@pytest.mark.parametrize('channels', [1, 2, 4, 6])
@pytest.mark.parametrize('size', [(40, 50), (1, 500), (500, 1)])
def test_channels_are_viewed_each_for_itself(channels, size):
    planes = [picture(*size, k)[..., 0] for k in range(channels)]
    augmentation = ViewAugmentation(
        (16, 24),
        jitter={'brightness': 0.4, 'contrast': 0.4},
        blur={},
        solarize={'prob': 0.5},
    )
    for seed in range(4):
        view, _ = augmentation(np.dstack(planes), np.random.default_rng(seed))
        assert view.shape == (channels, 16, 24) and view.is_contiguous()
        for k, plane in enumerate(planes):
            alone, _ = augmentation(plane, np.random.default_rng(seed))
            # above four channels torch has another kernel
            difference = view[k].int() - alone[0].int()
            assert difference.abs().max() <= (2 if channels > 4 else 0)


@pytest.mark.parametrize(
    ('settings_', 'named'),
    [
        ({'jitter': {'saturation': 0.2}}, 'views.v.jitter.saturation'),
        ({'jitter': {'hue': 0.1, 'prob': 0.1}}, 'views.v.jitter.hue'),
        ({'gray': 0.1}, 'views.v.gray'),
    ],
)
def test_colour_of_other_images_is_refused(settings_, named):
    augmentation = ViewAugmentation(8, **settings_, name='views.v')
    message = rf'{named} needs RGB images, but the image has 4 channel'
    with pytest.raises(ValueError, match=message):
        augmentation(np.zeros((9, 9, 4), np.uint8), np.random.default_rng(0))


def test_colour_that_is_switched_off_is_no_matter_for_other_images():
    augmentation = ViewAugmentation(
        8, jitter={'hue': 0.1, 'saturation': 0.1, 'prob': 0.0}, gray=0.0
    )
    image = np.zeros((9, 9, 4), np.uint8)
    view, _ = augmentation(image, np.random.default_rng(0))
    assert view.shape == (4, 8, 8)


@pytest.mark.parametrize(
    ('image', 'error', 'message'),
    [
        (np.zeros((9, 9, 3)), TypeError, 'uint8 levels, got float64'),
        (np.zeros((2, 9, 9, 3), np.uint8), ValueError, r'\(H, W, C\)'),
    ],
)
def test_arrays_that_are_no_images_are_refused(image, error, message):
    with pytest.raises(error, match=message):
        ViewAugmentation(8)(image, np.random.default_rng(0))


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
