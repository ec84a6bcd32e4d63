"""Colour operations on uint8 arrays: Pillow's, at the speed of OpenCV.

Arrays have shape (H, W, 3), or where a function says so any number of
channels; a single channel may come as (H, W) and leaves so. With equal
factors the results are within one level of torchvision's on PIL images, and
equal nearly everywhere, hue apart: it is rounded down to 255 steps of the
circle as in Pillow, but the saturation, which Pillow rounds down to 8 bits,
is kept as it is. That lowers the levels by a sixth of one on average.
"""

import cv2
import numpy as np
from PIL import Image

# Pillow rounds down; what OpenCV rounds to the nearest must be lower by half.
_ROUND_DOWN = -0.4999
_LEVELS = np.arange(256)


def adjust_brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with black, on any number of channels."""
    return cv2.convertScaleAbs(image, alpha=factor, beta=_ROUND_DOWN)


def adjust_contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the rounded mean grey level of the image.

    Other than RGB, every channel is blended with its own mean.
    """
    if image.ndim == 2:
        return _blend_level(image, factor, cv2.mean(image)[0])
    if image.shape[2] == 3:
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        return _blend_level(image, factor, cv2.mean(gray)[0])
    return np.dstack([adjust_contrast(c, factor) for c in cv2.split(image)])


def _blend_level(image: np.ndarray, factor: float, level: float) -> np.ndarray:
    offset = (1 - factor) * int(level + 0.5) + _ROUND_DOWN
    return cv2.addWeighted(image, factor, image, 0, offset)


def adjust_saturation(image: np.ndarray, factor: float) -> np.ndarray:
    """Blend with the grey image."""
    gray = to_gray(image)
    return cv2.addWeighted(image, factor, gray, 1 - factor, _ROUND_DOWN)


def to_gray(image: np.ndarray) -> np.ndarray:
    """Grey levels (ITU-R 601-2 luma) in three equal channels."""
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB)


def solarize(image: np.ndarray, threshold: float) -> np.ndarray:
    """Invert levels from ``threshold`` on, of any number of channels."""
    table = np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS)
    return cv2.LUT(image, table.astype(np.uint8))


def adjust_hue(image: np.ndarray, factor: float) -> np.ndarray:
    """Turn the hue by ``factor`` of the circle, in [-0.5, 0.5].

    With v the largest and c the range of the three levels of a pixel, each
    level is v - c * fall(hue): a fixed curve for each channel, looked up at
    the turned hue.
    """
    turn = int(factor * 255) % 256
    hue = hue_of(image)
    planes = np.empty((3, *hue.shape), np.uint8)
    cv2.split(image, list(planes))  # writes into the planes
    largest = planes.max(axis=0)
    extent = largest - planes.min(axis=0)
    for plane, fall in zip(planes, _FALL):
        share = cv2.LUT(hue, fall[turn : turn + 256])
        drop = cv2.multiply(extent, share, scale=1 / 255)
        np.subtract(largest, drop, out=plane)
    return cv2.merge(list(planes))


def hue_of(image: np.ndarray) -> np.ndarray:
    """Hue of RGB pixels as Pillow's HSV mode has it: uint8 (H, W).

    255 steps make a circle; what lies between two is rounded down.
    """
    hsv = cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2HSV)
    degrees = cv2.extractChannel(hsv, 0)
    nearest = cv2.convertScaleAbs(degrees, alpha=255 / 360)
    steps = cv2.scaleAdd(degrees, 255 / 360, cv2.LUT(nearest, _TO_STEP))
    return cv2.convertScaleAbs(steps)


def _fall_curves() -> np.ndarray:
    """Curves of red, green and blue: uint8 (3, 512), 255 is the whole range.

    They stand twice in a row, so that a turned curve is a slice. A channel
    loses nothing up to 42.5 from its own colour, everything up to 42.5 from
    the opposite one, and the loss is linear in between.
    """
    opposite = 255 * np.array([3, 5, 1])[:, None]
    distance = np.abs((6 * _LEVELS - opposite + 765) % 1530 - 765)
    fall = np.clip(510 - distance, 0, 255).astype(np.uint8)
    return np.concatenate([fall, fall], axis=1)


def _to_step() -> np.ndarray:
    """What is added to a hue before it is rounded to the nearest step.

    About -0.5, to round down. Hues that are a step exactly, such as those of
    many fully saturated colours, go down or stay by Pillow's error in single
    precision; so it is asked once for each step. No other hue of 8-bit
    colours is as near as 0.001 to a step.
    """
    colours = 255 - np.ascontiguousarray(_FALL[:, :256].T)[None]
    hues = np.asarray(Image.fromarray(colours).convert('HSV'))[0, :, 0]
    down = hues < _LEVELS
    return np.where(down, -0.501, -0.499).astype(np.float32)


_FALL = _fall_curves()
_TO_STEP = _to_step()
ADJUSTMENTS = {
    'brightness': adjust_brightness,
    'contrast': adjust_contrast,
    'saturation': adjust_saturation,
    'hue': adjust_hue,
}
