import io

import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmpretrain.registry import TRANSFORMS
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from mim_plugins.datasets import LoadImage, ResizeShortEdge
from mim_plugins.datasets.transforms import UnreadableImage


def gradient(height=12, width=20):
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 12, y * 20, x + y], -1) % 256
    return Image.fromarray(pixels.astype(np.uint8))


def load(path):
    results = LoadImage()({'img_path': str(path)})
    assert results['img'].mode == 'RGB'
    assert results['img_shape'] == results['img'].size[::-1]
    return np.array(results['img']).astype(int)


def save(folder, image, name, **options):
    path = folder / name
    image.save(path, **options)
    return path


def test_png_is_read_exactly(tmp_path):
    image = gradient()
    path = save(tmp_path, image, 'a.png')
    np.testing.assert_array_equal(load(path), np.array(image))
    array = LoadImage(array=True)({'img_path': path})['img']
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, np.array(image))


@pytest.mark.parametrize('orientation', [1, 3, 6, 8])
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path, gradient(), 'a.png', exif=exif)
    turns = {1: 0, 3: 2, 6: 3, 8: 1}[orientation]
    np.testing.assert_array_equal(
        load(path), np.rot90(np.array(gradient()), turns)
    )


@pytest.mark.parametrize('mode', ['1', 'L', 'P', 'CMYK', 'YCbCr'])
def test_modes_become_rgb(tmp_path, mode):
    image = gradient().convert(mode)
    path = save(tmp_path, image, 'a.tif')
    assert Image.open(path).mode == mode
    np.testing.assert_array_equal(load(path), np.array(image.convert('RGB')))


@pytest.mark.parametrize('mode', ['RGBA', 'LA'])
def test_transparency_is_put_on_white(tmp_path, mode):
    image = Image.new('RGB', (4, 2), (0, 0, 0)).convert(mode)
    alpha = np.array([[0, 255, 128, 0], [255, 255, 0, 64]], dtype=np.uint8)
    image.putalpha(Image.fromarray(alpha))
    path = save(tmp_path, image, 'a.png')
    expected = np.repeat(255 - alpha[..., None].astype(int), 3, -1)
    assert np.abs(load(path) - expected).max() <= 1


@pytest.mark.parametrize('mode', ['P', 'L', 'RGB'])
def test_transparent_colour_is_put_on_white(tmp_path, mode):
    pixels = np.array([[0, 1], [1, 0]], dtype=np.uint8)
    image = Image.fromarray(pixels * 200)
    key = 0
    if mode == 'P':
        image = Image.fromarray(pixels).convert('P')
        image.putpalette([9, 9, 9, 200, 200, 200])
    elif mode == 'RGB':
        image, key = image.convert('RGB'), (0, 0, 0)
    path = save(tmp_path, image, 'a.png', transparency=key)
    assert Image.open(path).mode == mode
    expected = np.where(pixels[..., None] == 0, 255, 200).repeat(3, -1)
    np.testing.assert_array_equal(load(path), expected)


def test_16_bit_grey_keeps_its_range(tmp_path):
    levels = np.array([[0, 128, 129, 257, 32896, 65535]], dtype=np.uint16)
    path = save(tmp_path, Image.fromarray(levels), 'a.png')
    expected = np.array([[0, 0, 1, 1, 128, 255]])[..., None].repeat(3, -1)
    np.testing.assert_array_equal(load(path), expected)


def test_float_pixels_are_refused(tmp_path):
    path = save(tmp_path, Image.fromarray(np.ones((2, 2), 'f')), 'a.tif')
    with pytest.raises(UnreadableImage, match='a.tif.*floating-point'):
        load(path)


def test_integers_above_16_bits_are_refused(tmp_path):
    pixels = np.full((2, 2), 70000, np.int32)
    path = save(tmp_path, Image.fromarray(pixels), 'a.tif')
    with pytest.raises(UnreadableImage, match='a.tif.*16 bits'):
        load(path)


def test_unreadable_files_are_named(tmp_path):
    buffer = io.BytesIO()
    gradient(64, 64).save(buffer, 'JPEG')
    broken = tmp_path / 'half.jpg'
    broken.write_bytes(buffer.getvalue()[:-200])
    with pytest.raises(UnreadableImage, match='half.jpg.*truncated'):
        load(broken)
    (tmp_path / 'text.jpg').write_text('no image')
    with pytest.raises(UnreadableImage, match='text.jpg'):
        load(tmp_path / 'text.jpg')
    with pytest.raises(UnreadableImage, match='missing.jpg.*No such file'):
        load(tmp_path / 'missing.jpg')


def test_file_backends_are_used(tmp_path):
    path = save(tmp_path, gradient(), 'a.png')
    loader = LoadImage(backend_args={'backend': 'local'})
    image = loader({'img_path': str(path)})['img']
    np.testing.assert_array_equal(np.array(image), np.array(gradient()))


@pytest.mark.parametrize('size', [(20, 12), (12, 20), (16, 16), (8, 8)])
@pytest.mark.parametrize('interpolation', ['bicubic', 'bilinear'])
def test_short_edge_equals_torchvision(size, interpolation):
    image = gradient(*size)
    mode = InterpolationMode(interpolation)
    expected = np.array(F.resize(image, 8, mode))
    resize = ResizeShortEdge(8, interpolation)
    for img in (image, np.array(image)):
        results = resize({'img': img})
        np.testing.assert_array_equal(results['img'], expected)
        assert results['img_shape'] == expected.shape[:2]


def test_evaluation_pipeline_of_mmpretrain_parts(tmp_path):
    path = save(tmp_path, gradient(30, 50), 'a.png')
    pipeline = Compose(
        [
            TRANSFORMS.build(step)
            for step in (
                {'type': 'LoadImage'},
                {'type': 'ResizeShortEdge', 'scale': 20},
                {'type': 'CenterCrop', 'crop_size': 16},
                {'type': 'PackInputs'},
            )
        ]
    )
    packed = pipeline({'img_path': str(path), 'gt_label': 3})
    resized = F.resize(gradient(30, 50), 20, InterpolationMode.BICUBIC)
    expected = F.pil_to_tensor(F.center_crop(resized, 16))
    assert packed['inputs'].dtype == torch.uint8
    assert packed['inputs'].shape == (3, 16, 16)
    assert torch.equal(packed['inputs'], expected)
    assert packed['data_samples'].gt_label.item() == 3
    assert packed['data_samples'].ori_shape == (30, 50)


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match='scale'):
        ResizeShortEdge(0)
    with pytest.raises(TypeError, match="mean 'bicubic'"):
        ResizeShortEdge(8, 'bicubc')
