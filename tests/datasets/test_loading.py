import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmpretrain.registry import TRANSFORMS
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from mim_plugins.datasets import LoadImage, ResizeShortEdge
from mim_plugins.datasets.transforms import UnreadableImage
from mim_plugins.datasets.transforms.decoding import to_rgb


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


@pytest.mark.parametrize('mode', ['1', 'L', 'P', 'CMYK'])
def test_modes_become_rgb(tmp_path, mode):
    image = gradient().convert(mode)
    path = save(tmp_path, image, 'a.tif')
    assert Image.open(path).mode == mode
    np.testing.assert_array_equal(load(path), np.array(image.convert('RGB')))


def test_ycbcr_becomes_rgb():
    # in memory: Pillow before 13 cannot read such a file of its own
    image = gradient().convert('YCbCr')
    np.testing.assert_array_equal(to_rgb(image), image.convert('RGB'))


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


def test_every_orientation_equals_that_of_pillow(tmp_path):
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        path = save(tmp_path, gradient(), 'a.png', exif=exif)
        with Image.open(path) as image:
            expected = np.array(ImageOps.exif_transpose(image))
        np.testing.assert_array_equal(load(path), expected)


def test_an_error_from_a_worker_keeps_the_sentence(tmp_path):
    """torch builds the exception anew, from one string."""
    loader = torch.utils.data.DataLoader(
        Loaded([str(tmp_path / 'gone.png')]), num_workers=1, batch_size=None
    )
    with pytest.raises(UnreadableImage, match='gone.png: .*No such file'):
        next(iter(loader))


class Loaded(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return LoadImage()({'img_path': self.paths[index]})


@pytest.mark.parametrize('channels', [1, 3, 4, 6])
def test_channels_give_arrays_but_for_rgb(tmp_path, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 6), np.uint8)
    np.save(tmp_path / 'a.npy', pixels[..., :channels])
    load = LoadImage(channels=channels)
    results = load({'img_path': tmp_path / 'a.npy'})
    assert isinstance(results['img'], Image.Image) == (channels == 3)
    np.testing.assert_array_equal(results['img'], pixels[..., :channels])
    assert results['img_shape'] == results['ori_shape'] == (9, 7)
    if channels in (1, 4):
        path = save(tmp_path, gradient(), 'a.png')
        image = load({'img_path': path})['img']
        expected = gradient().convert({1: 'L', 4: 'RGBA'}[channels])
        expected = np.array(expected).reshape(12, 20, channels)
        np.testing.assert_array_equal(image, expected)


def test_pages_of_a_tiff_are_channels(tmp_path):
    pages = [gradient().getchannel(i % 3).rotate(90 * i) for i in (0, 2, 4)]
    pages = [*pages, Image.fromarray(np.full((12, 20), 257, np.uint16))]
    path = tmp_path / 'a.tif'
    pages[0].save(path, save_all=True, append_images=[*pages[1:], pages[0]])
    image = LoadImage(channels=5)({'img_path': path})['img']
    assert image.shape == (12, 20, 5)
    np.testing.assert_array_equal(image[..., 1], np.array(pages[1]))
    assert (image[..., 3] == 1).all()
    with pytest.raises(UnreadableImage, match=r'5 page\(s\).*6 channels'):
        LoadImage(channels=6)({'img_path': path})
    pages[0].save(path, save_all=True, append_images=[gradient()])
    with pytest.raises(UnreadableImage, match='page 2 is not grey'):
        LoadImage(channels=2)({'img_path': path})
    small = pages[1].resize((4, 4))
    pages[0].save(path, save_all=True, append_images=[small])
    with pytest.raises(UnreadableImage, match='pages differ in size'):
        LoadImage(channels=2)({'img_path': path})


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


@pytest.mark.parametrize('channels', [1, 4, 6])
def test_short_edge_resizes_each_channel_for_itself(channels):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (20, 30, channels), np.uint8)
    results = ResizeShortEdge(8)({'img': image})
    assert results['img_shape'] == (8, 12)
    assert results['img'].shape == (8, 12, channels)
    for i in range(channels):
        band = Image.fromarray(image[..., i])
        expected = F.resize(band, 8, InterpolationMode.BICUBIC)
        np.testing.assert_array_equal(results['img'][..., i], expected)


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
    for channels in (0, -1, '3', None):
        with pytest.raises(ValueError, match='channels must be at least 1'):
            LoadImage(channels=channels)
