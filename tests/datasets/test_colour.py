import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision.transforms import functional as F
from toy_pictures import assert_equal_up_to_rounding, picture

from mim_plugins.datasets.transforms.colour import (
    ADJUSTMENTS,
    adjust_brightness,
    adjust_contrast,
    hue_of,
    solarize,
    to_gray,
)

TORCHVISION = {
    'brightness': F.adjust_brightness,
    'contrast': F.adjust_contrast,
    'saturation': F.adjust_saturation,
    'hue': F.adjust_hue,
}
pictures = st.builds(
    picture,
    st.just(64),
    st.just(80),
    st.integers(0, 1000),
    noise=st.sampled_from([0.0, 3.0, 8.0, 20.0]),
    saturation=st.sampled_from([0.3, 1.0, 3.0]),
)


def largest_difference(ours, reference):
    return np.abs(ours.astype(int) - np.asarray(reference)).max()


def many_colours():
    """Grey, pure and mixed colours, in all the steps of a coarse grid."""
    levels = np.array([0, 1, 2, *range(5, 251, 15), 253, 254, 255], np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), -1)
    return grid.reshape(len(levels) ** 2, len(levels), 3)


@pytest.mark.parametrize('name', list(ADJUSTMENTS))
@settings(max_examples=25)
@given(image=pictures, factor=st.floats(0, 1))
def test_adjustments_equal_torchvision(name, image, factor):
    factor = factor - 0.5 if name == 'hue' else 2 * factor
    expected = TORCHVISION[name](Image.fromarray(image), factor)
    assert_equal_up_to_rounding(ADJUSTMENTS[name](image, factor), expected)


@pytest.mark.parametrize('name', list(ADJUSTMENTS))
def test_every_colour_is_adjusted_as_in_torchvision(name):
    image = many_colours()
    factors = (-0.5, -0.1, -0.003, 0.0, 0.05, 0.31, 0.5)
    if name != 'hue':
        factors = (0.0, 0.37, 0.9, 1.0, 1.01, 1.4, 2.0)
    most = {'brightness': 0, 'contrast': 0, 'saturation': 1, 'hue': 1}
    for factor in factors:
        expected = TORCHVISION[name](Image.fromarray(image), factor)
        ours = ADJUSTMENTS[name](image, factor)
        assert largest_difference(ours, expected) <= most[name], factor
        assert_equal_up_to_rounding(ours, expected)


def test_hue_is_that_of_pillow_where_it_is_a_whole_step():
    """Hues of saturated colours are whole steps more often than not."""
    ramp = np.arange(256, dtype=np.uint8)
    zero, full = np.zeros_like(ramp), np.full_like(ramp, 255)
    sides = [
        (full, ramp, zero),
        (ramp, full, zero),
        (zero, full, ramp),
        (zero, ramp, full),
        (ramp, zero, full),
        (full, zero, ramp),
    ]
    image = np.stack([np.stack(side, -1) for side in sides])
    expected = np.asarray(Image.fromarray(image).convert('HSV'))[..., 0]
    np.testing.assert_array_equal(hue_of(image), expected)


@settings(max_examples=20)
@given(image=pictures)
def test_gray_equals_torchvision(image):
    gray = to_gray(image)
    expected = F.rgb_to_grayscale(Image.fromarray(image), 3)
    assert largest_difference(gray, expected) <= 1
    assert_equal_up_to_rounding(gray, expected)
    assert (gray == gray[..., :1]).all()


@settings(max_examples=20)
@given(image=pictures, threshold=st.integers(0, 256))
def test_solarize_equals_pillow(image, threshold):
    expected = ImageOps.solarize(Image.fromarray(image), threshold)
    np.testing.assert_array_equal(solarize(image, threshold), expected)


@pytest.mark.parametrize('size', [(1, 1), (1, 50), (50, 1)])
@pytest.mark.parametrize('name', list(ADJUSTMENTS))
def test_thin_images_are_adjusted(name, size):
    image = picture(*size)
    expected = TORCHVISION[name](Image.fromarray(image), 0.4)
    assert largest_difference(ADJUSTMENTS[name](image, 0.4), expected) <= 1


@pytest.mark.parametrize('channels', [1, 2, 4, 6])
def test_other_images_are_adjusted_channel_by_channel(channels):
    image = np.dstack([picture(20, 30, k)[..., 0] for k in range(channels)])
    for name in ('brightness', 'contrast'):
        for factor in (0.6, 1.4):
            ours = ADJUSTMENTS[name](image, factor).reshape(image.shape)
            for k in range(channels):
                plane = Image.fromarray(image[..., k])
                expected = TORCHVISION[name](plane, factor)
                assert largest_difference(ours[..., k], expected) <= 1
    inverted = solarize(image, 0).reshape(image.shape)
    np.testing.assert_array_equal(inverted, 255 - image)


def test_input_stays_as_it_is():
    image = picture(16, 16)
    before = image.copy()
    for adjust in ADJUSTMENTS.values():
        adjust(image, 0.3)
    to_gray(image)
    solarize(image, 9)
    np.testing.assert_array_equal(image, before)


def test_a_plane_without_axis_of_channels_is_one_channel():
    image = picture(8, 9)[..., 0]
    for adjust in (adjust_brightness, adjust_contrast):
        np.testing.assert_array_equal(
            adjust(image, 0.7),
            adjust(image[..., None], 0.7).reshape(8, 9),
        )
