"""Textures of the things and of the grounds: two families that share none.

A texture is a function of coordinates in periods, ``(u, v)``, and of a
generator, and gives a value in [0, 1] that mixes two colours. Edges are left
hard: drawing at several times the size makes them smooth.
"""

from collections.abc import Callable

import cv2
import numpy as np

Texture = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
_LATTICE, _FINER = 32, 8


def _fraction(x: np.ndarray) -> np.ndarray:
    return x - np.floor(x)


def _saw(x: np.ndarray) -> np.ndarray:
    """Triangle wave of period one, in [0, 1]."""
    return np.abs(2 * _fraction(x) - 1)


def _noise(
    u: np.ndarray, v: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Smooth noise that varies over about one unit of (u, v), in [0, 1]."""
    lattice = rng.random((_LATTICE, _LATTICE), dtype=np.float32)
    lattice = np.pad(lattice, 2, mode='wrap')
    # remap rounds to 1/32 of a pixel, which shows unless the pixels are fine.
    fine = cv2.resize(
        lattice, None, fx=_FINER, fy=_FINER, interpolation=cv2.INTER_CUBIC
    )
    x, y = (
        (w - _LATTICE * np.floor(w / _LATTICE) + 2.5) * _FINER - 0.5
        for w in (u, v)
    )
    return np.clip(cv2.remap(fine, x, y, cv2.INTER_LINEAR), 0, 1)


def _stripes(u, v, rng):
    return _fraction(u) < 0.5


def _checks(u, v, rng):
    return (_fraction(u / 1.4) < 0.5) ^ (_fraction(v / 1.4) < 0.5)


def _dots(u, v, rng):
    return np.hypot(_fraction(u) - 0.5, _fraction(v) - 0.5) < 0.33


def _rings(u, v, rng):
    return _fraction(np.hypot(u, v)) < 0.5


def _zigzag(u, v, rng):
    return _fraction(u + 0.8 * _saw(v / 1.6)) < 0.5


def _grid(u, v, rng):
    return (_fraction(u) < 0.24) | (_fraction(v) < 0.24)


def _spokes(u, v, rng):
    return _fraction(np.arctan2(v, u) * (4 / np.pi)) < 0.5


def _blotches(u, v, rng):
    return _noise(u * 1.1, v * 1.1, rng) < 0.5


def _speckles(u, v, rng):
    cells = rng.random((_LATTICE, _LATTICE)) < 0.5
    column = np.floor(u * 3.2).astype(np.int32) % _LATTICE
    row = np.floor(v * 3.2).astype(np.int32) % _LATTICE
    return cells[row, column]


def _scales(u, v, rng):
    row = np.floor(2 * v)
    below = v - row / 2
    odd = row - 2 * np.floor(row / 2)
    near = np.hypot(_fraction(u - odd / 2) - 0.5, below)
    far = np.hypot(_fraction(u + 0.5 - odd / 2) - 0.5, below + 0.5)
    distance = np.where(near < 0.5, near, far)
    return np.clip(2 * distance, 0, 1) ** 2


def _clouds(u, v, rng):
    return 0.65 * _noise(u, v, rng) + 0.35 * _noise(2.3 * u, 2.3 * v, rng)


def _sand(u, v, rng):
    return _noise(5 * u, 5 * v, rng)


def _fibre(u, v, rng):
    return _noise(5 * u, 0.8 * v, rng)


def _marble(u, v, rng):
    warp = _noise(1.2 * u, 1.2 * v, rng)
    return _saw(0.7 * u + 1.4 * warp)


def _haze(u, v, rng):
    return 0.5 + 0.5 * np.sin(0.9 * u + 0.8 * _noise(u, v, rng))


_THING_TEXTURES: dict[str, Texture] = {
    'blotches': _blotches,
    'checks': _checks,
    'dots': _dots,
    'grid': _grid,
    'rings': _rings,
    'scales': _scales,
    'speckles': _speckles,
    'spokes': _spokes,
    'stripes': _stripes,
    'zigzag': _zigzag,
}
_GROUND_TEXTURES: dict[str, Texture] = {
    'clouds': _clouds,
    'fibre': _fibre,
    'haze': _haze,
    'marble': _marble,
    'sand': _sand,
}
TEXTURES = tuple(_THING_TEXTURES)
GROUNDS = tuple(_GROUND_TEXTURES)


def texture_values(
    name: str, u: np.ndarray, v: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Values of a texture, of a thing or of a ground.

    Args:
        name (str): one of ``TEXTURES`` or ``GROUNDS``.
        u (ndarray): (H, W) float32, coordinates in periods.
        v (ndarray): (H, W) float32, as ``u``.
        rng (Generator): draws what is random inside the texture.

    Returns:
        ndarray: (H, W) float32 in [0, 1].

    Raises:
        ValueError: the name is in neither family.
    """
    texture = _THING_TEXTURES.get(name) or _GROUND_TEXTURES.get(name)
    if texture is None:
        raise ValueError(
            f"there is no texture '{name}'; things have one of "
            f'{", ".join(TEXTURES)}, grounds one of {", ".join(GROUNDS)}'
        )
    return np.asarray(texture(u, v, rng), dtype=np.float32)
