import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from toy_pictures import assert_equal_up_to_rounding, picture

from mim_plugins.datasets.transforms.resize import INTERPOLATIONS, resize


def pillow(image, size, interpolation):
    """Columns first where Pillow 13 does so, whatever release is there."""
    (h, w), (height, width) = size, image.shape[:2]
    steps = [(w, height), (w, h)]
    if height > h and height - h > 2 * (width - w):
        steps = [(width, h), (w, h)]
    pil = Image.fromarray(image)
    for step in steps:
        pil = pil.resize(step, INTERPOLATIONS[interpolation])
    return np.asarray(pil)


@pytest.mark.parametrize('interpolation', ['bicubic', 'bilinear'])
@settings(max_examples=50)
@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    size=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    seed=st.integers(0, 1000),
    saturation=st.sampled_from([1.0, 4.0]),
)
def test_any_size_is_within_a_level_of_pillow(
    interpolation, height, width, size, seed, saturation
):
    image = picture(height, width, seed, saturation=saturation)
    ours = resize(image, size, interpolation)
    expected = pillow(image, size, interpolation)
    assert ours.shape == expected.shape and ours.flags.c_contiguous
    assert np.abs(ours.astype(int) - expected).max() <= 1


@pytest.mark.parametrize('interpolation', ['bicubic', 'bilinear'])
@pytest.mark.parametrize('shape', [(150, 200), (200, 150), (300, 240)])
def test_pictures_are_resized_as_by_pillow_in_one_go(interpolation, shape):
    image = picture(*shape)
    mode = INTERPOLATIONS[interpolation]
    expected = Image.fromarray(image).resize((96, 96), mode)
    ours = resize(image, (96, 96), interpolation)
    assert_equal_up_to_rounding(ours, expected)


@pytest.mark.parametrize('channels', [1, 2, 4, 6])
def test_channels_are_resized_each_for_itself(channels):
    image = np.dstack([picture(50, 70, k)[..., 0] for k in range(channels)])
    ours = resize(image, (24, 32))
    assert ours.shape == (24, 32, channels)
    for k in range(channels):
        expected = pillow(image[..., k], (24, 32), 'bicubic')
        assert np.abs(ours[..., k].astype(int) - expected).max() <= 1


def test_the_right_size_is_left_alone():
    image = picture(20, 30)
    np.testing.assert_array_equal(resize(image, (20, 30)), image)


@pytest.mark.filterwarnings('error')
def test_pixels_that_are_read_only_are_not_written():
    image = np.asarray(Image.fromarray(picture(20, 30)))
    assert not image.flags.writeable
    assert resize(image, (20, 30)).flags.writeable
