"""Antialiased resizing of uint8 arrays, equal to Pillow's within a level."""

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

# torch's names, and what Pillow calls them
INTERPOLATIONS = {
    'bilinear': Image.Resampling.BILINEAR,
    'bicubic': Image.Resampling.BICUBIC,
}


def resize(
    image: np.ndarray, size: tuple[int, int], interpolation: str = 'bicubic'
) -> np.ndarray:
    """Resize uint8 (H, W, C) to (h, w), any number of channels.

    torch's kernel for uint8 images is Pillow's algorithm in vector
    instructions: rows, then columns, rounded and clipped in between. Columns
    come first where the height shrinks by more than twice what the width
    does, as in Pillow 13: the order decides where overshoot is clipped.

    Args:
        image: the levels; a slice of a larger image may be given.
        size: height and width in pixels.
        interpolation: 'bicubic' or 'bilinear'.
    """
    height, width = image.shape[:2]
    steps = [size]
    if height > size[0] and height - size[0] > 2 * (width - size[1]):
        steps = [(size[0], width), size]
    # a copy, since torch wants writable pixels without gaps
    pixels = torch.from_numpy(image.copy())[None].permute(0, 3, 1, 2)
    for step in steps:
        pixels = interpolate(pixels, step, mode=interpolation, antialias=True)
    return pixels[0].permute(1, 2, 0).contiguous().numpy()
