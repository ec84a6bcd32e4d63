"""Gaussian blur of uint8 arrays, equal to Pillow's up to rounding.

Pillow approximates a Gaussian by three box blurs along the rows and three
along the columns, with boxes of fractional width (Gwosdek et al., Theoretical
foundations of Gaussian convolution by extended box filtering, 2011).
"""

import math

import cv2
import numpy as np

_PASSES = 3


def gaussian_blur(image: np.ndarray, radius: float) -> np.ndarray:
    """Blur uint8 (H, W, C) or (H, W), any number of channels.

    Args:
        image: the levels.
        radius (float): standard deviation in pixels, as that of
            ``PIL.ImageFilter.GaussianBlur``; 0 changes nothing.
    """
    if radius == 0:
        return image
    box = box_weights(radius)
    if radius <= 0.3:
        return _literally(image, box)
    if radius <= 1:
        return _narrow(image, box)
    return _both_ways(image, box)


def _literally(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Three boxes along the rows, then three along the columns."""
    for kernel in (box[None], box[:, None]):
        for _ in range(_PASSES):
            image = cv2.filter2D(
                image, -1, kernel, borderType=cv2.BORDER_REPLICATE
            )
    return image


def _narrow(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The same where a box has three weights: as Gaussians of three.

    OpenCV has them in whole numbers, of 256 steps: too coarse for the ends of
    the smallest boxes.
    """
    sigma = math.sqrt(-0.5 / math.log(box[0] / box[1]))
    for size in ((3, 1), (1, 3)):
        for _ in range(_PASSES):
            image = cv2.GaussianBlur(
                image, size, sigma, borderType=cv2.BORDER_REPLICATE
            )
    return image


def _both_ways(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Three boxes along rows and columns at once.

    With small boxes it would show that this rounds half as often: one that
    changes a level by less than a half changes nothing.
    """
    for _ in range(_PASSES):
        image = cv2.sepFilter2D(
            image, -1, box, box, borderType=cv2.BORDER_REPLICATE
        )
    return image


def box_weights(radius: float) -> np.ndarray:
    """Weights of one box: equal ones, and a fraction at both ends."""
    variance = radius**2 / _PASSES
    whole = int((math.sqrt(12 * variance + 1) - 1) / 2)
    end = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    end /= 6 * (variance - (whole + 1) ** 2)
    total = 2 * whole + 1 + 2 * end
    inner = [1 / total] * (2 * whole + 1)
    return np.array([end / total, *inner, end / total])
