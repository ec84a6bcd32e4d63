"""From the kinds of image files to 8 bits a channel."""

import io

import numpy as np
from PIL import Image, ImageSequence

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SAMPLES_PER_PIXEL = 277
_WITH_ALPHA = ('LA', 'PA', 'RGBA', 'RGBa')


def read_array(source: str | io.BytesIO, channels: int) -> np.ndarray:
    """A ``.npy`` file as uint8 (H, W, C); objects in it are never loaded.

    Raises:
        ValueError: another type than uint8 or uint16, or another shape.
    """
    if isinstance(source, str):
        with open(source, 'rb') as file:
            pixels = np.lib.format.read_array(file, allow_pickle=False)
    else:
        pixels = np.lib.format.read_array(source, allow_pickle=False)
    if pixels.ndim == 2 and channels == 1:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] != channels or not pixels.size:
        raise ValueError(
            f'the array has shape {pixels.shape}, not (H, W, {channels})'
        )
    if pixels.dtype == np.uint16:
        pixels = _scale_16_bit(pixels)
    if pixels.dtype != np.uint8:
        raise ValueError(
            f'the array is {pixels.dtype}, neither uint8 nor uint16'
        )
    return np.ascontiguousarray(pixels)


def stack_pages(image: Image.Image, channels: int) -> np.ndarray:
    """The grey pages of a TIFF as channels, uint8 (H, W, channels).

    Raises:
        ValueError: another format, another number of pages, pages that are
            not grey or of several sizes.
    """
    pages = getattr(image, 'n_frames', 1)
    if image.format != 'TIFF' or pages != channels:
        raise ValueError(
            f'a {image.format} of {pages} page(s) does not hold {channels} '
            f'channels: save an array (H, W, {channels}) as .npy, or a TIFF '
            f'of {channels} grey pages'
        )
    bands = []
    for page in ImageSequence.Iterator(image):
        page.load()
        refuse_lost_bands(page)
        band = _eight_bit(page)
        if band.mode != 'L':
            raise ValueError(f'page {len(bands) + 1} is not grey')
        bands.append(np.array(band))
    if len({band.shape for band in bands}) > 1:
        raise ValueError('the pages differ in size')
    return np.stack(bands, axis=-1)


def to_rgb(image: Image.Image) -> Image.Image:
    """Upright 8-bit RGB version of any PIL image.

    Raises:
        ValueError: pixel values without a known range (float images, integers
            above 16 bits).
    """
    image = upright(image)
    if image.mode == 'RGB' and 'transparency' not in image.info:
        return image
    image = _eight_bit(image)
    if 'transparency' in image.info or image.mode in _WITH_ALPHA:
        image = image.convert('RGBA')
        white = Image.new('RGBA', image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert('RGB')


def to_rgba(image: Image.Image) -> Image.Image:
    """Upright 8-bit RGBA version of any PIL image, alpha as it is.

    Raises:
        ValueError: as :func:`to_rgb`.
    """
    return _eight_bit(upright(image)).convert('RGBA')


def upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says.

    Not by PIL's ``exif_transpose``, which also writes the EXIF block anew and
    so fails on a damaged one.
    """
    turn = _TURNS.get(image.getexif().get(_ORIENTATION))
    return image if turn is None else image.transpose(turn)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Integer images as grey; every other mode that PIL has is 8-bit."""
    if image.mode == 'F':
        raise ValueError('floating-point pixels have no known range')
    if image.mode == 'La':  # PIL converts it to nothing else
        return image.convert('LA')
    if not image.mode.startswith('I'):
        return image
    pixels = np.asarray(image)
    if pixels.size and not 0 <= pixels.min() <= pixels.max() <= 65535:
        raise ValueError('grey levels outside 16 bits have no known range')
    return Image.fromarray(_scale_16_bit(pixels))


def _scale_16_bit(pixels: np.ndarray) -> np.ndarray:
    """0 to 65535 as 0 to 255, rounded."""
    scaled = (pixels.astype(np.uint32) * 255 + 32767) // 65535
    return scaled.astype(np.uint8)


def refuse_lost_bands(image: Image.Image) -> None:
    """PIL leaves out bands of a TIFF that it has no mode for.

    Raises:
        ValueError: the file has more bands than the image.
    """
    if image.format != 'TIFF':
        return
    bands = image.tag_v2.get(_SAMPLES_PER_PIXEL, 1)
    if bands != len(image.getbands()):
        raise ValueError(
            f'a TIFF of {bands} bands, of which Pillow reads '
            f'{len(image.getbands())}: save it as an array '
            f'(H, W, {bands}) in a .npy file'
        )
