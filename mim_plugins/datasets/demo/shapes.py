"""Outlines of the demo data: simple polygons without holes.

Every outline is centred on its centroid and has the area of the unit disc,
so that neither the size nor the place of a thing tells its shape.
"""

from collections.abc import Callable

import numpy as np

_CURVE_POINTS = 48


def _disc() -> np.ndarray:
    turn = np.linspace(0, 2 * np.pi, _CURVE_POINTS, endpoint=False)
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _square() -> np.ndarray:
    return np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)], dtype=float)


def _triangle() -> np.ndarray:
    turn = np.pi / 2 + np.arange(3) * 2 * np.pi / 3
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


def _star() -> np.ndarray:
    turn = np.pi / 2 + np.arange(10) * np.pi / 5
    radius = np.where(np.arange(10) % 2 == 0, 1.0, 0.45)
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1)


def _cross() -> np.ndarray:
    a, b = 0.36, 1.0
    corner = np.array([(b, -a), (b, a), (a, a)])
    quarter = np.array([(0.0, -1.0), (1.0, 0.0)])
    parts = []
    for _ in range(4):
        parts.append(corner)
        corner = corner @ quarter
    return np.concatenate(parts[:1] + parts[3:0:-1])


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, _CURVE_POINTS, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x, y], axis=1)


def _crescent() -> np.ndarray:
    half = _CURVE_POINTS // 2
    outer = np.linspace(0.28 * np.pi, 1.72 * np.pi, half)
    tip = np.array([np.cos(outer[0]), np.sin(outer[0])])
    centre = np.array([0.52, 0.0])
    radius = np.hypot(*(tip - centre))
    start = np.arctan2(*(tip - centre)[::-1])
    inner = np.linspace(2 * np.pi - start, start, half)[1:-1]
    return np.concatenate(
        [
            np.stack([np.cos(outer), np.sin(outer)], axis=1),
            centre + radius * np.stack([np.cos(inner), np.sin(inner)], axis=1),
        ]
    )


def _arrow() -> np.ndarray:
    return np.array(
        [
            (1.2, 0),
            (0.1, 1.0),
            (0.1, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (0.1, -0.4),
            (0.1, -1.0),
        ]
    )


def _horseshoe() -> np.ndarray:
    half = _CURVE_POINTS // 2
    turn = np.linspace(0.22 * np.pi, 1.78 * np.pi, half)
    rim = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    return np.concatenate([rim, 0.45 * rim[::-1]])


def _bolt() -> np.ndarray:
    return np.array(
        [
            (-0.5, 1.2),
            (0.65, 1.2),
            (0.2, 0.35),
            (0.8, 0.35),
            (-0.45, -1.3),
            (-0.1, -0.2),
            (-0.7, -0.2),
        ]
    )


_OUTLINES: dict[str, Callable[[], np.ndarray]] = {
    'arrow': _arrow,
    'bolt': _bolt,
    'crescent': _crescent,
    'cross': _cross,
    'disc': _disc,
    'heart': _heart,
    'horseshoe': _horseshoe,
    'square': _square,
    'star': _star,
    'triangle': _triangle,
}
SHAPES = tuple(_OUTLINES)


def signed_area(polygon: np.ndarray) -> float:
    """Signed area of a simple polygon (n, 2), by the shoelace formula."""
    x, y = polygon.T
    after_x, after_y = np.roll(x, -1), np.roll(y, -1)
    return float(np.sum(x * after_y - after_x * y) / 2)


def centroid(polygon: np.ndarray) -> np.ndarray:
    """Centre of area (2,) of a simple polygon (n, 2)."""
    after = np.roll(polygon, -1, axis=0)
    cross = polygon[:, 0] * after[:, 1] - after[:, 0] * polygon[:, 1]
    return ((polygon + after) * cross[:, None]).sum(0) / (3 * cross.sum())


def outline(shape: str) -> np.ndarray:
    """Outline of a shape: (n, 2) points, centred, with area pi.

    Raises:
        ValueError: the name is none of ``SHAPES``.
    """
    if shape not in _OUTLINES:
        raise ValueError(
            f"there is no shape '{shape}'; choose one of {', '.join(SHAPES)}"
        )
    points = _OUTLINES[shape]()
    points = points - centroid(points)
    return points * np.sqrt(np.pi / abs(signed_area(points)))
