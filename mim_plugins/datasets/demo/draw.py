"""From a scene to a picture, with its masks and polygons."""

from typing import NamedTuple

import cv2
import numpy as np

from .scene import Ground, Scene, Thing
from .textures import texture_values

_SUBPIXEL_BITS = 8


class Drawing(NamedTuple):
    """A picture and where its things are.

    ``image`` (S, S, 3) uint8 RGB; ``masks`` (n, S, S) bool, the pixels that a
    thing covers by half or more and that no later one hides; ``polygons`` n
    arrays (m, 2) of x, y in pixels, where the picture spans [0, S].
    """

    image: np.ndarray
    masks: np.ndarray
    polygons: list[np.ndarray]


def draw(scene: Scene, size: int = 64, supersample: int = 3) -> Drawing:
    """Draw a scene.

    Args:
        scene (Scene): what to draw.
        size (int): side of the picture in pixels.
        supersample (int): edges and textures are drawn at this multiple of
            the size and averaged.
    """
    canvas = _paint_ground(scene.ground, size)
    masks = np.zeros((len(scene.things), size, size), dtype=bool)
    for i, thing in enumerate(scene.things):
        covered = _paint_thing(canvas, thing, supersample)
        masks[:i] &= ~covered
        masks[i] = covered
    image = np.clip(canvas + 0.5, 0, 255).astype(np.uint8)
    return Drawing(image, masks, [t.polygon() * size for t in scene.things])


def _coordinates(
    box: tuple[int, int, int, int],
    side: int,
    centre: tuple[float, float],
    angle: float,
    period: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates in periods (u, v) of the pixels of a box x0, y0, x1, y1."""
    x0, y0, x1, y1 = box
    x = ((np.arange(x0, x1) + 0.5) / side - centre[0]) / period
    y = ((np.arange(y0, y1) + 0.5) / side - centre[1]) / period
    x, y = x.astype(np.float32)[None], y.astype(np.float32)[:, None]
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return cos * x + sin * y, cos * y - sin * x


def _mix(
    colours: tuple[tuple[int, int, int], ...], values: np.ndarray
) -> np.ndarray:
    first, second = np.asarray(colours, dtype=np.float32)
    return first + (second - first) * values[..., None]


def _paint_ground(ground: Ground, side: int) -> np.ndarray:
    u, v = _coordinates(
        (0, 0, side, side), side, (0.5, 0.5), ground.angle, ground.scale
    )
    rng = np.random.default_rng(ground.seed)
    return _mix(ground.colours, texture_values(ground.texture, u, v, rng))


def _paint_thing(
    canvas: np.ndarray, thing: Thing, supersample: int
) -> np.ndarray:
    """Paint a thing over the canvas; gives the pixels that it covers.

    Only the pixels around the thing are drawn at the larger size.
    """
    size = canvas.shape[0]
    side = size * supersample
    covered = np.zeros((size, size), dtype=bool)
    points = thing.polygon() * size
    low = np.clip(np.floor(points.min(0)).astype(int), 0, size)
    high = np.clip(np.ceil(points.max(0)).astype(int), 0, size)
    if (high <= low).any():
        return covered
    box = (*(low * supersample).tolist(), *(high * supersample).tolist())
    coverage = _coverage(points * supersample, box)
    u, v = _coordinates(
        box,
        side,
        thing.centre,
        thing.angle + thing.texture_angle,
        thing.texture_scale * thing.radius,
    )
    phase_u, phase_v = np.float32(thing.texture_phase)
    rng = np.random.default_rng(thing.seed)
    values = texture_values(thing.texture, u + phase_u, v + phase_v, rng)
    paint = _mix(thing.colours, values) * coverage[..., None]
    width, height = (high - low).tolist()
    paint = cv2.resize(paint, (width, height), interpolation=cv2.INTER_AREA)
    share = cv2.resize(coverage, (width, height), interpolation=cv2.INTER_AREA)
    window = np.s_[low[1] : high[1], low[0] : high[0]]
    canvas[window] = canvas[window] * (1 - share[..., None]) + paint
    covered[window] = share >= 0.5
    return covered


def _coverage(
    points: np.ndarray, box: tuple[int, int, int, int]
) -> np.ndarray:
    """1 inside a polygon, else 0: (h, w) float32, of a box x0, y0, x1, y1."""
    x0, y0, x1, y1 = box
    inside = np.zeros((y1 - y0, x1 - x0), dtype=np.uint8)
    # cv2 counts from pixel centres, polygons from the picture's corner.
    fixed = (points - (x0 + 0.5, y0 + 0.5)) * 2**_SUBPIXEL_BITS
    fixed = np.round(fixed).astype(np.int32)
    cv2.fillPoly(inside, [fixed], 1, shift=_SUBPIXEL_BITS)
    return inside.astype(np.float32)
