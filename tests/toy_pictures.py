"""Pictures with what photographs have: smooth ground, edges, noise."""

import cv2
import numpy as np


def picture(
    height: int,
    width: int,
    seed: int = 0,
    noise: float = 8.0,
    saturation: float = 1.0,
) -> np.ndarray:
    """uint8 RGB (height, width, 3).

    Args:
        height, width: in pixels.
        seed: of ground, shapes and noise.
        noise: standard deviation in grey levels.
        saturation: spread of the levels around the middle; with 3 most of
            them are 0 or 255.
    """
    rng = np.random.default_rng(seed)
    ground = rng.integers(0, 256, (5, 6, 3)).astype(np.float32)
    pixels = cv2.resize(ground, (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(8):
        top, left = rng.integers(0, height), rng.integers(0, width)
        h, w = rng.integers(1, max(height // 2, 2), 2)
        pixels[top : top + h, left : left + w] = rng.integers(0, 256, 3)
    pixels = 127.5 + (pixels - 127.5) * saturation
    pixels += rng.normal(0, noise, pixels.shape)
    return pixels.clip(0, 255).astype(np.uint8)


def assert_equal_up_to_rounding(ours, reference) -> None:
    """Half a level on average, 99.9 % of the pixels within four."""
    ours, reference = np.asarray(ours), np.asarray(reference)
    assert ours.shape == reference.shape and ours.dtype == np.uint8
    difference = np.abs(ours.astype(int) - reference)
    assert difference.mean() <= 0.5
    assert (difference.max(axis=-1) <= 4).mean() >= 0.999
