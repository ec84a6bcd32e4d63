"""Reading of image files, and resizing for evaluation.

What each kind of file gives is tabled in ``mim_plugins/datasets/README.md``.
"""

import io
from collections.abc import Mapping
from os import PathLike, fspath

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine import fileio
from mmpretrain.registry import TRANSFORMS
from PIL import Image, UnidentifiedImageError

from .checks import check_keys
from .decoding import (
    read_array,
    refuse_lost_bands,
    stack_pages,
    to_rgb,
    to_rgba,
)
from .resize import INTERPOLATIONS


class UnreadableImage(RuntimeError):
    """A file that is missing or is not an image that can be decoded.

    Attributes:
        path (str): the file.
        reason (str): why it could not be read.
    """

    def __init__(self, message: str, path: str = '', reason: str = ''):
        # torch builds it anew, from the message alone, for a worker's error
        super().__init__(message)
        self.path = path
        self.reason = reason


@TRANSFORMS.register_module()
class LoadImage(BaseTransform):
    """Read ``results['img_path']`` as 8 bits a channel.

    The EXIF orientation is applied. 16-bit levels are scaled to 8 bits. Of an
    animation the first frame is read.

    Args:
        array (bool): give ``results['img']`` as a uint8 array (H, W, C) where
            it would be a PIL image, that is with ``channels=3``.
        backend_args (dict, optional): for mmengine's file backends; None
            reads local files, and URLs by their prefix.
        channels (int): what ``results['img']`` holds.

            - 3: an RGB PIL image; palettes, CMYK and grey are converted,
              transparency is put on white;
            - 1: a uint8 array (H, W, 1), the grey levels (ITU-R 601-2 luma)
              of that;
            - 4: a uint8 array (H, W, 4), red, green, blue and alpha as they
              are, alpha 255 where a file has none;
            - any other N: a uint8 array (H, W, N) from a ``.npy`` file or a
              TIFF of N grey pages.

            Any number can be read from ``.npy`` files of shape (H, W, N), or
            (H, W) for one channel, uint8 or uint16.

    Raises:
        ValueError: fewer than one channel.
        UnreadableImage: names the file and the reason.
    """

    draws_from_rng = True

    def __init__(
        self,
        array: bool = False,
        backend_args: Mapping | None = None,
        channels: int = 3,
    ):
        if not isinstance(channels, int) or channels < 1:
            raise ValueError(
                f'LoadImage: channels must be at least 1, got {channels!r}.'
            )
        self.array = array
        self.backend_args = backend_args
        self.channels = channels

    def transform(self, results: dict) -> dict:
        """Add ``img``, ``ori_shape`` and ``img_shape`` (h, w)."""
        image = self.read(results['img_path'])
        if isinstance(image, Image.Image):
            results['ori_shape'] = image.size[::-1]
            image = np.array(image) if self.array else image
        else:
            results['ori_shape'] = image.shape[:2]
        results['img_shape'] = results['ori_shape']
        results['img'] = image
        return results

    def read(self, path: str | PathLike) -> Image.Image | np.ndarray:
        """Decoded image: PIL for three channels, else (H, W, C) uint8."""
        source = path = fspath(path)
        try:
            if self.backend_args is not None or '://' in path:
                source = io.BytesIO(fileio.get(path, self.backend_args))
            if path.lower().endswith('.npy'):
                pixels = read_array(source, self.channels)
                rgb = self.channels == 3
                return Image.fromarray(pixels) if rgb else pixels
            with Image.open(source) as image:
                return self._decode(image)
        except Exception as error:
            reason = _reason(error)
            raise UnreadableImage(
                f'could not read {path}: {reason}. Repair the file or take '
                'it out of the data set (or its list file).',
                path,
                reason,
            ) from error

    def _decode(self, image: Image.Image) -> Image.Image | np.ndarray:
        if self.channels not in (1, 3, 4):
            return stack_pages(image, self.channels)
        image.load()
        refuse_lost_bands(image)
        if self.channels == 3:
            return to_rgb(image)
        if self.channels == 1:
            return np.array(to_rgb(image).convert('L'))[..., None]
        return np.array(to_rgba(image))

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(array={self.array}, '
            f'channels={self.channels})'
        )


def _reason(error: Exception) -> str:
    """What went wrong, without the path of the file."""
    if isinstance(error, UnidentifiedImageError):
        return 'cannot identify an image in it'
    return getattr(error, 'strerror', None) or str(error) or repr(error)


@TRANSFORMS.register_module()
class ResizeShortEdge(BaseTransform):
    """Resize so that the shorter edge has ``scale`` pixels (antialiased PIL).

    Takes ``results['img']`` as a PIL image or a uint8 array (H, W, C) of any
    number of channels and leaves a uint8 array (H, W, C), which mmpretrain's
    ``CenterCrop`` and ``PackInputs`` take. The longer edge is truncated to an
    integer, as in torchvision's ``Resize``.

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
        if isinstance(image, Image.Image) or image.shape[2] == 3:
            results['img'] = self._resize(image)
        else:  # PIL would weight the colours of RGBA by alpha
            bands = [self._resize(band) for band in np.moveaxis(image, 2, 0)]
            results['img'] = np.stack(bands, axis=-1)
        results['img_shape'] = results['img'].shape[:2]
        return results

    def _resize(self, image: Image.Image | np.ndarray) -> np.ndarray:
        if not isinstance(image, Image.Image):
            image = Image.fromarray(np.ascontiguousarray(image))
        short = min(image.size)
        if short != self.scale:
            size = [int(self.scale * edge / short) for edge in image.size]
            image = image.resize(size, INTERPOLATIONS[self.interpolation])
        return np.array(image)

    def __repr__(self) -> str:
        return (
            f'{type(self).__name__}(scale={self.scale}, '
            f'interpolation={self.interpolation!r})'
        )
