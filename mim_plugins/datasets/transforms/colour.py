"""Colour operations on PIL RGB images, equal to torchvision's PIL ones.

They are written out because torchvision's wrappers cost more than the work
itself on small crops.
"""

import numpy as np
from PIL import Image, ImageEnhance

_LEVELS = np.arange(256)


def adjust_brightness(image: Image.Image, factor: float) -> Image.Image:
    """Blend with black; ``factor`` 1 leaves the image as it is."""
    return ImageEnhance.Brightness(image).enhance(factor)


def adjust_contrast(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the rounded mean grey level of the image."""
    counts = np.array(image.convert('L').histogram())
    mean = int(counts.dot(_LEVELS) / counts.sum() + 0.5)
    flat = Image.new('RGB', image.size, (mean, mean, mean))
    return Image.blend(flat, image, factor)


def adjust_saturation(image: Image.Image, factor: float) -> Image.Image:
    """Blend with the grey image."""
    return Image.blend(to_gray(image), image, factor)


def adjust_hue(image: Image.Image, factor: float) -> Image.Image:
    """Turn the hue by ``factor`` of the circle, in [-0.5, 0.5]."""
    pixels = bytearray(image.convert('HSV').tobytes())
    hue = np.frombuffer(pixels, dtype=np.uint8)[::3]
    # uint8 addition wraps around, which is what a circle needs
    hue += np.uint8(int(factor * 255) % 256)
    return Image.frombytes('HSV', image.size, pixels).convert('RGB')


def to_gray(image: Image.Image) -> Image.Image:
    """Grey levels (ITU-R 601-2 luma) in three equal channels."""
    return image.convert('L').convert('RGB')


ADJUSTMENTS = {
    'brightness': adjust_brightness,
    'contrast': adjust_contrast,
    'saturation': adjust_saturation,
    'hue': adjust_hue,
}
