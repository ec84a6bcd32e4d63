"""Scenes and drawings of the demo data."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mim_plugins.datasets.demo import (
    CLASS_NAMES,
    DEMO_CLASSES,
    GROUNDS,
    SHAPES,
    TEXTURES,
    Ground,
    Scene,
    Thing,
    draw,
    make_scene,
    outline,
    random_scene,
)
from mim_plugins.datasets.demo.shapes import centroid, signed_area

SIZE = 64


def plain_scene(**changes):
    thing = Thing('star', 'stripes', centre=(0.45, 0.55), radius=0.28, seed=3)
    return Scene((replace(thing, **changes),), Ground('marble', seed=5))


def rasterised(polygon, size, finer=8):
    """Pixels covered by half or more, counted on a finer picture."""
    fine = np.zeros((size * finer, size * finer), np.uint8)
    points = np.round((polygon * finer - 0.5) * 16).astype(np.int32)
    cv2.fillPoly(fine, [points], 1, shift=4)
    return fine.reshape(size, finer, size, finer).mean((1, 3)) >= 0.5


def overlap(first, second):
    return (first & second).sum() / (first | second).sum()


def test_classes_differ_in_texture_and_in_shape():
    assert len(DEMO_CLASSES) == 10
    assert {item.shape for item in DEMO_CLASSES} == set(SHAPES)
    assert {item.texture for item in DEMO_CLASSES} == set(TEXTURES)
    assert not set(TEXTURES) & set(GROUNDS)
    # Folders are numbered in sorted order: labels agree in every layout.
    assert list(CLASS_NAMES) == sorted(CLASS_NAMES)


@pytest.mark.parametrize('shape', SHAPES)
def test_outlines_are_centred_and_equal_in_area(shape):
    points = outline(shape)
    assert abs(signed_area(points)) == pytest.approx(np.pi)
    np.testing.assert_allclose(centroid(points), 0, atol=1e-9)


@pytest.mark.parametrize('shape', SHAPES)
def test_outlines_do_not_cross_themselves(shape):
    """The filled pixels of a polygon that does cross itself miss its area."""
    points = outline(shape) * 100 + 250
    filled = np.zeros((500, 500), np.uint8)
    cv2.fillPoly(filled, [np.round(points * 256).astype(np.int32)], 1, shift=8)
    length = np.hypot(*(points - np.roll(points, 1, axis=0)).T).sum()
    # fillPoly counts the pixels of the outline too.
    expected = 1e4 * np.pi + length / 2
    assert filled.sum() == pytest.approx(expected, rel=0.02)


def test_unknown_names_are_refused_with_those_that_exist():
    with pytest.raises(ValueError, match='no shape .blob.*arrow'):
        draw(plain_scene(shape='blob'), SIZE)
    with pytest.raises(ValueError, match='no texture .tartan.*blotches'):
        draw(plain_scene(texture='tartan'), SIZE)


@pytest.mark.parametrize('label', range(len(DEMO_CLASSES)))
def test_mask_polygon_and_box_agree(label):
    rng = np.random.default_rng(label)
    scene = random_scene(rng, [label])
    image, masks, polygons = draw(scene, SIZE)
    assert image.shape == (SIZE, SIZE, 3) and image.dtype == np.uint8
    assert masks.shape == (1, SIZE, SIZE) and masks.dtype == bool
    (mask,), (polygon,) = masks, polygons
    assert overlap(mask, rasterised(polygon, SIZE)) > 0.95
    assert mask.sum() == pytest.approx(abs(signed_area(polygon)), rel=0.06)
    rows, columns = np.nonzero(mask)
    low = np.array([columns.min(), rows.min()])
    high = np.array([columns.max(), rows.max()]) + 1
    # Thin tips cover less than half of their pixels: the mask is smaller.
    assert (polygon.min(0) <= low + 1).all()
    assert (polygon.max(0) >= high - 1).all()
    assert polygon.min() >= 0 and polygon.max() <= SIZE


def test_what_is_drawn_is_where_the_mask_says():
    """On and off the mask the picture is, and is not, the thing's colour."""
    red = (200, 20, 20)
    scene = plain_scene(colours=(red, red))
    image, (mask,), _ = draw(scene, SIZE)
    inner = cv2.erode(mask.astype(np.uint8), np.ones((3, 3))) > 0
    outer = cv2.dilate(mask.astype(np.uint8), np.ones((3, 3))) == 0
    assert (image[inner] == red).all()
    bare = draw(Scene((), scene.ground), SIZE).image
    assert (image[outer] == bare[outer]).all()
    assert (image[inner] != bare[inner]).any(-1).all()


def test_edges_are_smooth():
    scene = Scene(
        (replace(plain_scene().things[0], colours=((255,) * 3,) * 2),),
        Ground(colours=((0,) * 3,) * 2),
    )
    values = np.unique(draw(scene, SIZE, supersample=4).image)
    assert len(values) > 8
    assert set(np.unique(draw(scene, SIZE, supersample=1).image)) == {0, 255}


def test_a_scene_looks_the_same_at_any_size():
    scene = plain_scene()
    small = draw(scene, 32).image.astype(float)
    large = draw(scene, 128).image
    shrunk = cv2.resize(large, (32, 32), interpolation=cv2.INTER_AREA)
    assert np.abs(small - shrunk).mean() < 4


def test_later_things_hide_earlier_ones():
    thing = plain_scene().things[0]
    scene = Scene((thing, replace(thing, shape='disc', radius=0.2)))
    first, second = draw(scene, SIZE).masks
    assert second.any() and first.any() and not (first & second).any()


def test_a_thing_outside_of_the_picture_leaves_no_trace():
    drawing = draw(plain_scene(centre=(2.0, 2.0)), SIZE)
    assert not drawing.masks.any()
    bare = draw(Scene((), plain_scene().ground), SIZE)
    assert (drawing.image == bare.image).all()


def test_swapping_the_ground_leaves_the_thing():
    scene = plain_scene()
    image, (mask,), _ = draw(scene, SIZE)
    inner = cv2.erode(mask.astype(np.uint8), np.ones((3, 3))) > 0
    outer = cv2.dilate(mask.astype(np.uint8), np.ones((3, 3))) == 0
    other_ground = make_scene(0, 'val', 4).ground
    for ground in ('sand', other_ground):
        swapped = draw(scene.recombine(ground=ground), SIZE)
        assert (swapped.masks[0] == mask).all()
        assert (swapped.image[inner] == image[inner]).all()
        assert (swapped.image[outer] != image[outer]).any(-1).mean() > 0.9


def test_texture_against_shape():
    scene = plain_scene()
    conflict = scene.recombine(texture='dots')
    thing = conflict.things[0]
    assert CLASS_NAMES[thing.shape_label] == 'striped_star'
    assert CLASS_NAMES[thing.texture_label] == 'dotted_heart'
    assert thing.label is None
    assert scene.things[0].label == CLASS_NAMES.index('striped_star')
    image, (mask,), _ = draw(scene, SIZE)
    other = draw(conflict, SIZE)
    assert (other.masks[0] == mask).all()
    assert (other.image[mask] != image[mask]).any(-1).mean() > 0.2


def test_shape_can_change_alone():
    scene = plain_scene()
    image, (mask,), _ = draw(scene, SIZE)
    other = draw(scene.recombine(shape='triangle'), SIZE)
    assert overlap(other.masks[0], mask) < 0.9
    inner = (mask & other.masks[0]).astype(np.uint8)
    inner = cv2.erode(inner, np.ones((3, 3))) > 0
    assert (other.image[inner] == image[inner]).all()


def test_every_texture_differs_from_every_other():
    pictures = {
        name: draw(plain_scene(shape='disc', texture=name), SIZE)
        for name in TEXTURES
    }
    mask = pictures['dots'].masks[0]
    for first in TEXTURES:
        for second in TEXTURES:
            if first < second:
                difference = np.abs(
                    pictures[first].image[mask].astype(int)
                    - pictures[second].image[mask]
                )
                assert difference.mean() > 20, (first, second)


@given(st.integers(0, 2**40), st.integers(0, 10**5))
@settings(max_examples=25, deadline=None)
def test_things_stay_inside_and_apart(seed, index):
    scene = make_scene(seed, 'train', index, (1, 4))
    assert 1 <= len(scene.things) <= 4
    assert scene.things[0].label == index % 10
    masks = draw(scene, 48).masks.sum(0)
    assert masks.max() == 1
    for thing in scene.things:
        polygon = thing.polygon()
        assert polygon.min() > 0 and polygon.max() < 1


def test_scenes_depend_on_seed_split_and_index():
    scene = make_scene(1, 'train', 7)
    assert scene == make_scene(1, 'train', 7)
    assert scene != make_scene(2, 'train', 7)
    assert scene != make_scene(1, 'val', 7)
    assert scene != make_scene(1, 'train', 17)
    assert scene != make_scene(1, 'train', 7, (1, 2))


def test_colour_carries_little_of_the_class():
    """The palette is shared; only how much of a colour is seen differs."""
    count = 600

    def colours(split):
        return np.array(
            [
                draw(make_scene(0, split, i), 32).image.mean((0, 1))
                for i in range(count)
            ]
        )

    train, val, label = colours('train'), colours('val'), np.arange(count) % 10
    means = np.array([train[label == i].mean(0) for i in range(10)])
    distance = np.linalg.norm(val[:, None] - means, axis=-1)
    # Chance is 0.1; shapes and textures cover more or less of the ground.
    assert (distance.argmin(1) == label).mean() < 0.4


def test_raw_pixels_are_a_poor_guide_but_not_none():
    """Nearest neighbour on centred pixels: above chance, far from solved."""
    train, val = (
        np.array(
            [
                draw(make_scene(0, split, i), 32).image.reshape(-1)
                for i in range(count)
            ],
            dtype=np.float32,
        )
        for split, count in (('train', 800), ('val', 200))
    )
    mean = train.mean(0)
    train, val = train - mean, val - mean
    train /= np.linalg.norm(train, axis=1, keepdims=True)
    nearest = (val @ train.T).argmax(1)
    accuracy = (nearest % 10 == np.arange(200) % 10).mean()
    assert 0.15 < accuracy < 0.6
