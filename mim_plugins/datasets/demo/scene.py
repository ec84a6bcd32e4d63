"""What is in a picture: things and a ground, each a set of free factors.

A scene holds every number that its picture depends on, so that drawing it is
a pure function, at any size. Lengths are fractions of the picture's side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .shapes import outline
from .textures import GROUNDS

Colour = tuple[int, int, int]


class DemoClass(NamedTuple):
    """A class of the demo data: its things share a shape and a texture."""

    name: str
    shape: str
    texture: str


DEMO_CLASSES = (
    DemoClass('blotched_horseshoe', 'horseshoe', 'blotches'),
    DemoClass('checked_disc', 'disc', 'checks'),
    DemoClass('dotted_heart', 'heart', 'dots'),
    DemoClass('gridded_cross', 'cross', 'grid'),
    DemoClass('ringed_triangle', 'triangle', 'rings'),
    DemoClass('scaled_arrow', 'arrow', 'scales'),
    DemoClass('speckled_crescent', 'crescent', 'speckles'),
    DemoClass('spoked_square', 'square', 'spokes'),
    DemoClass('striped_star', 'star', 'stripes'),
    DemoClass('zigzag_bolt', 'bolt', 'zigzag'),
)
CLASS_NAMES = tuple(item.name for item in DEMO_CLASSES)
_BY_SHAPE = {item.shape: i for i, item in enumerate(DEMO_CLASSES)}
_BY_TEXTURE = {item.texture: i for i, item in enumerate(DEMO_CLASSES)}

# One palette for every class: which colours a picture has tells nothing.
THING_COLOURS: tuple[Colour, Colour] = ((42, 48, 66), (226, 208, 160))
GROUND_COLOURS: tuple[Colour, Colour] = ((70, 96, 98), (178, 170, 150))
# A student that can tell pictures apart by their colours, or by which colour
# of a texture is in front, learns little else in minutes: both are the same in
# every picture.
COLOUR_SPREAD = 2


@dataclass(frozen=True)
class Thing:
    """A textured shape.

    Args:
        shape (str): one of ``SHAPES``.
        texture (str): one of ``TEXTURES``.
        centre (tuple): x and y of the centroid.
        radius (float): radius of the disc of the same area.
        angle (float): of the shape, in radians.
        texture_scale (float): period of the texture, in radii.
        texture_angle (float): of the texture, in radians, beside the shape's.
        texture_phase (tuple): shift of the texture, in periods.
        colours (tuple): the two that the texture mixes.
        seed (int): for what is random inside the texture.
    """

    shape: str
    texture: str
    centre: tuple[float, float] = (0.5, 0.5)
    radius: float = 0.3
    angle: float = 0.0
    texture_scale: float = 0.5
    texture_angle: float = 0.0
    texture_phase: tuple[float, float] = (0.0, 0.0)
    colours: tuple[Colour, Colour] = THING_COLOURS
    seed: int = 0

    @property
    def shape_label(self) -> int:
        """Index of the class that has this shape."""
        return _BY_SHAPE[self.shape]

    @property
    def texture_label(self) -> int:
        """Index of the class that has this texture."""
        return _BY_TEXTURE[self.texture]

    @property
    def label(self) -> int | None:
        """Index of the class, or None where shape and texture disagree."""
        label = self.shape_label
        return label if label == self.texture_label else None

    def polygon(self) -> np.ndarray:
        """Outline (n, 2) of x, y in the picture."""
        return np.asarray(self.centre) + self.radius * turned(
            outline(self.shape), self.angle
        )


@dataclass(frozen=True)
class Ground:
    """What is behind the things: one of ``GROUNDS``, filling the picture."""

    texture: str = 'clouds'
    scale: float = 0.3
    angle: float = 0.0
    colours: tuple[Colour, Colour] = GROUND_COLOURS
    seed: int = 0


@dataclass(frozen=True)
class Scene:
    """Things, in drawing order, on a ground."""

    things: tuple[Thing, ...]
    ground: Ground = field(default_factory=Ground)

    def recombine(
        self,
        shape: str | None = None,
        texture: str | None = None,
        ground: 'str | Ground | None' = None,
    ) -> 'Scene':
        """The same scene with other factors; None leaves a factor alone.

        Place, size, angles, phases, colours and seeds stay. ``ground`` is a
        name, or a ``Ground`` taken from another scene.
        """
        changes = {}
        if shape is not None:
            changes['shape'] = shape
        if texture is not None:
            changes['texture'] = texture
        things = tuple(replace(thing, **changes) for thing in self.things)
        if ground is None:
            ground = self.ground
        elif isinstance(ground, str):
            ground = replace(self.ground, texture=ground)
        return Scene(things, ground)


def turned(points: np.ndarray, angle: float) -> np.ndarray:
    """Points (n, 2) turned about the origin."""
    cos, sin = np.cos(angle), np.sin(angle)
    return points @ np.array([(cos, sin), (-sin, cos)])


def _near(
    rng: np.random.Generator, colours: tuple[Colour, Colour]
) -> tuple[Colour, Colour]:
    """Two colours, each moved a little."""
    moved = np.array(colours) + rng.integers(
        -COLOUR_SPREAD, COLOUR_SPREAD, (2, 3), endpoint=True
    )
    first, second = np.clip(moved, 0, 255).tolist()
    return tuple(first), tuple(second)


def _place(
    rng: np.random.Generator, shape: str, radius: float, margin: float
) -> tuple[tuple[float, float], float, float]:
    """Centre, radius and angle such that the shape is inside the picture."""
    angle = float(rng.uniform(0, 2 * np.pi))
    points = turned(outline(shape), angle)
    low, high = points.min(0), points.max(0)
    radius = float(min(radius, (1 - 2 * margin) / (high - low).max()))
    where = rng.random(2)
    start, end = margin - radius * low, 1 - margin - radius * high
    centre = start + where * (end - start)
    return (float(centre[0]), float(centre[1])), radius, angle


def random_thing(
    rng: np.random.Generator,
    shape: str,
    texture: str,
    radius: tuple[float, float] = (0.22, 0.36),
    margin: float = 0.02,
) -> Thing:
    """A thing of given shape and texture, all else random."""
    centre, size, angle = _place(rng, shape, rng.uniform(*radius), margin)
    return Thing(
        shape=shape,
        texture=texture,
        centre=centre,
        radius=size,
        angle=angle,
        texture_scale=float(rng.uniform(0.5, 0.72)),
        texture_angle=float(rng.uniform(0, 2 * np.pi)),
        texture_phase=tuple(rng.uniform(-0.5, 0.5, 2).tolist()),
        colours=_near(rng, THING_COLOURS),
        seed=int(rng.integers(2**32)),
    )


def random_ground(
    rng: np.random.Generator, texture: str | None = None
) -> Ground:
    """A random ground, of a given texture or of any."""
    any_texture = GROUNDS[rng.integers(len(GROUNDS))]
    return Ground(
        texture=any_texture if texture is None else texture,
        scale=float(rng.uniform(0.22, 0.34)),
        angle=float(rng.uniform(0, 2 * np.pi)),
        colours=_near(rng, GROUND_COLOURS),
        seed=int(rng.integers(2**32)),
    )


def _apart(thing: Thing, others: Sequence[Thing], gap: float) -> bool:
    """Whether the circles around the things do not meet."""
    for other in others:
        reach = gap
        for item in (thing, other):
            points = item.polygon() - np.asarray(item.centre)
            reach += np.hypot(*points.T).max()
        if np.hypot(*np.subtract(thing.centre, other.centre)) < reach:
            return False
    return True


def random_scene(
    rng: np.random.Generator,
    labels: Sequence[int],
    radius: tuple[float, float] = (0.22, 0.36),
    ground: str | None = None,
    tries: int = 30,
) -> Scene:
    """A random scene with one thing for each label, none over another.

    The first thing is always there; one of the others for which no room is
    found in ``tries`` draws is left out.
    """
    backdrop = random_ground(rng, ground)
    things: list[Thing] = []
    for label in labels:
        _, shape, texture = DEMO_CLASSES[label]
        for _ in range(tries):
            thing = random_thing(rng, shape, texture, radius)
            if _apart(thing, things, gap=0.02):
                things.append(thing)
                break
    return Scene(tuple(things), backdrop)
