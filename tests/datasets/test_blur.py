import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from toy_pictures import assert_equal_up_to_rounding, picture

from mim_plugins.datasets.transforms.blur import gaussian_blur


def pillow(image, radius):
    blur = ImageFilter.GaussianBlur(radius)
    return np.asarray(Image.fromarray(image).filter(blur))


@settings(max_examples=60)
@given(
    radius=st.floats(0, 2.5),
    seed=st.integers(0, 1000),
    noise=st.sampled_from([0.0, 3.0, 8.0, 20.0]),
    saturation=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_blur_equals_pillow(radius, seed, noise, saturation):
    image = picture(64, 80, seed, noise, saturation)
    expected = pillow(image, radius)
    assert_equal_up_to_rounding(gaussian_blur(image, radius), expected)


@pytest.mark.parametrize('radius', [0.25, 0.7, 1.3, 2.0, 4.5, 9.0])
def test_borders_are_those_of_pillow(radius):
    """Where an edge of the picture is as sharp as can be."""
    image = np.zeros((40, 40, 3), np.uint8)
    image[:1] = image[:, -2:] = 255
    difference = gaussian_blur(image, radius) - pillow(image, radius).astype(
        int
    )
    assert np.abs(difference).max() <= 2


@pytest.mark.parametrize('radius', [0.15, 0.4, 0.55])
def test_small_radii_leave_weak_noise_as_pillow_does(radius):
    """Boxes that change a level by less than a half change nothing."""
    image = picture(64, 64, 0, noise=4)
    difference = gaussian_blur(image, radius) - pillow(image, radius).astype(
        int
    )
    assert np.abs(difference).mean() < 0.1


@pytest.mark.parametrize('radius', [0.2, 0.8, 1.5, 3.0])
@pytest.mark.parametrize('channels', [1, 2, 4, 6])
def test_channels_are_blurred_each_for_itself(channels, radius):
    image = np.dstack([picture(20, 30, k)[..., 0] for k in range(channels)])
    blurred = gaussian_blur(image, radius).reshape(image.shape)
    for k in range(channels):
        expected = gaussian_blur(image[..., k].copy(), radius)
        np.testing.assert_array_equal(blurred[..., k], expected)


@pytest.mark.parametrize('size', [(1, 1), (1, 30), (2, 3)])
@pytest.mark.parametrize('radius', [0.2, 0.8, 2.0])
def test_images_smaller_than_the_filter_are_blurred(size, radius):
    image = picture(*size)
    difference = gaussian_blur(image, radius) - pillow(image, radius).astype(
        int
    )
    assert np.abs(difference).max() <= 2
