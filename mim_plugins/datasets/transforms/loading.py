"""Reading of image files, and resizing for evaluation."""

import io
from collections.abc import Mapping

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine import fileio
from mmpretrain.registry import TRANSFORMS
from PIL import Image, ImageOps

from .checks import check_keys
from .views import INTERPOLATIONS

_ORIENTATION = 0x0112
_WITH_ALPHA = ('LA', 'La', 'PA', 'RGBA', 'RGBa')


class UnreadableImage(RuntimeError):
    """A file that is missing or is not an image that can be decoded."""


@TRANSFORMS.register_module()
class LoadImage(BaseTransform):
    """Read ``results['img_path']`` as 8-bit RGB.

    The EXIF orientation is applied; palettes, CMYK, grey and 16-bit grey
    images are converted; transparency is put on white. Of an animation the
    first frame is read.

    Args:
        array (bool): give ``results['img']`` as a uint8 array (H, W, 3)
            instead of a PIL image.
        backend_args (dict, optional): for mmengine's file backends; None
            reads local files, and URLs by their prefix.

    Raises:
        UnreadableImage: names the file and the reason.
    """

    draws_from_rng = True

    def __init__(
        self, array: bool = False, backend_args: Mapping | None = None
    ):
        self.array = array
        self.backend_args = backend_args

    def transform(self, results: dict) -> dict:
        """Add ``img``, ``ori_shape`` and ``img_shape`` (h, w)."""
        image = self.read(results['img_path'])
        results['ori_shape'] = results['img_shape'] = image.size[::-1]
        results['img'] = np.array(image) if self.array else image
        return results

    def read(self, path: str) -> Image.Image:
        """Decoded RGB image."""
        source = path
        try:
            if self.backend_args is not None or '://' in str(path):
                source = io.BytesIO(fileio.get(path, self.backend_args))
            with Image.open(source) as image:
                image.load()
                return to_rgb(image)
        except Exception as error:
            raise UnreadableImage(
                f'could not read {path}: {error or type(error).__name__}. '
                'Repair the file or take it out of the data set (or its list '
                'file).'
            ) from error

    def __repr__(self) -> str:
        return f'{type(self).__name__}(array={self.array})'


def to_rgb(image: Image.Image) -> Image.Image:
    """Upright 8-bit RGB version of any PIL image.

    Raises:
        ValueError: pixel values without a known range (float images, integers
            above 16 bits).
    """
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode == 'RGB' and 'transparency' not in image.info:
        return image
    if image.mode.startswith('I'):
        image = _from_16_bit(image)
    elif image.mode == 'F':
        raise ValueError('floating-point pixels have no known range')
    if 'transparency' in image.info or image.mode in _WITH_ALPHA:
        image = image.convert('LA') if image.mode == 'La' else image
        image = image.convert('RGBA')
        white = Image.new('RGBA', image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert('RGB')


def _from_16_bit(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image).astype(np.int64)
    if pixels.size and not 0 <= pixels.min() <= pixels.max() <= 65535:
        raise ValueError('grey levels outside 16 bits have no known range')
    return Image.fromarray(((pixels * 255 + 32767) // 65535).astype(np.uint8))


@TRANSFORMS.register_module()
class ResizeShortEdge(BaseTransform):
    """Resize so that the shorter edge has ``scale`` pixels (antialiased PIL).

    Takes ``results['img']`` as a PIL image or a uint8 RGB array and leaves a
    uint8 RGB array (H, W, 3), which mmpretrain's ``CenterCrop`` and
    ``PackInputs`` take. The longer edge is truncated to an integer, as in
    torchvision's ``Resize``.

    Args:
        scale (int): pixels of the shorter edge.
        interpolation (str): 'bicubic' or 'bilinear'.
    """

    draws_from_rng = True

    def __init__(self, scale: int = 256, interpolation: str = 'bicubic'):
        if scale < 1:
            raise ValueError(f'scale must be at least 1, got {scale!r}.')
        check_keys([interpolation], INTERPOLATIONS, 'interpolation')
        self.scale = scale
        self.interpolation = interpolation

    def transform(self, results: dict) -> dict:
        """Replace ``img``, set ``img_shape`` (h, w)."""
        image = results['img']
        if not isinstance(image, Image.Image):
            image = Image.fromarray(image)
        width, height = image.size
        short = min(width, height)
        if short != self.scale:
            size = [int(self.scale * edge / short) for edge in image.size]
            image = image.resize(size, INTERPOLATIONS[self.interpolation])
        results['img'] = np.array(image)
        results['img_shape'] = image.size[::-1]
        return results

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(scale={self.scale}, '
            f'interpolation={self.interpolation!r})'
        )
