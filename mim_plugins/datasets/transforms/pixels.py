"""Images as arrays."""

import numpy as np
from PIL import Image


def as_pixels(image: Image.Image | np.ndarray) -> np.ndarray:
    """The levels of an image as a uint8 array (H, W, C), to be read only.

    PIL images are converted to RGB; an array (H, W) gets one channel.

    Raises:
        TypeError: an array that is not uint8.
        ValueError: an array of another number of axes.
    """
    if isinstance(image, Image.Image):
        return np.asarray(
            image if image.mode == 'RGB' else image.convert('RGB')
        )
    if image.dtype != np.uint8:
        raise TypeError(
            f'an image must hold uint8 levels, got {image.dtype}: scale it '
            'to [0, 255] when it is loaded.'
        )
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim != 3:
        raise ValueError(
            f'an image must have shape (H, W, C) or (H, W), got {image.shape}.'
        )
    return image
