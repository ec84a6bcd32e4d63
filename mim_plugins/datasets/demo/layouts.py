"""The three layouts on disk: where each picture and its labels go."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from .draw import Drawing
from .scene import CLASS_NAMES, Scene, Thing
from .shapes import signed_area

LAYOUTS = ('imagenet', 'ade20k', 'coco')
SPLITS = ('train', 'val')
_ADE_FOLDER = {'train': 'training', 'val': 'validation'}


def imagenet_path(root: Path, split: str, label: int, index: int) -> Path:
    """``imagenet/<split>/<class>/<class>_<index>.JPEG``."""
    name = CLASS_NAMES[label]
    folder = root / 'imagenet' / split / name
    return folder / f'{name}_{index:06d}.JPEG'


def ade20k_paths(root: Path, split: str, index: int) -> tuple[Path, Path]:
    """Image and label map under ``ade20k/{images,annotations}``."""
    name = f'ADE_{split}_{index + 1:08d}'
    folder = _ADE_FOLDER[split]
    return (
        root / 'ade20k' / 'images' / folder / f'{name}.jpg',
        root / 'ade20k' / 'annotations' / folder / f'{name}.png',
    )


def coco_path(root: Path, split: str, index: int) -> Path:
    """``coco/<split>2017/<id>.jpg``; the id is the index plus one."""
    return root / 'coco' / f'{split}2017' / f'{index + 1:012d}.jpg'


def coco_json_path(root: Path, split: str) -> Path:
    return root / 'coco' / 'annotations' / f'instances_{split}2017.json'


def make_folders(root: Path, layouts: Sequence[str]) -> None:
    """Make every folder that the layouts need."""
    for split in SPLITS:
        if 'imagenet' in layouts:
            for label in range(len(CLASS_NAMES)):
                path = imagenet_path(root, split, label, 0)
                path.parent.mkdir(parents=True, exist_ok=True)
        if 'ade20k' in layouts:
            for path in ade20k_paths(root, split, 0):
                path.parent.mkdir(parents=True, exist_ok=True)
        if 'coco' in layouts:
            for path in (
                coco_path(root, split, 0),
                coco_json_path(root, split),
            ):
                path.parent.mkdir(parents=True, exist_ok=True)


def save_label_map(path: Path, labels: np.ndarray) -> None:
    """Write a label map (S, S) as a PNG of one channel."""
    Image.fromarray(labels).save(path, 'PNG')


def save_picture(
    paths: Sequence[Path], image: np.ndarray, quality: int
) -> None:
    """Write a JPEG once; further paths are hard links where possible."""
    first, *others = paths
    Image.fromarray(image).save(first, 'JPEG', quality=quality)
    for other in others:
        try:
            os.link(first, other)
        except OSError:
            shutil.copyfile(first, other)


def _category(thing: Thing) -> int:
    """Number of a thing's class, from one."""
    if thing.label is None:
        raise ValueError(
            f'a {thing.shape} with {thing.texture} is of no class: its shape '
            f"is of '{CLASS_NAMES[thing.shape_label]}', its texture of "
            f"'{CLASS_NAMES[thing.texture_label]}'"
        )
    return thing.label + 1


def label_map(scene: Scene, drawing: Drawing) -> np.ndarray:
    """(S, S) uint8: 0 is ground, a class has its index plus one.

    This is ADE20K's numbering, where 0 is what belongs to no class. Read
    with ``reduce_zero_label=True`` and ``CLASS_NAMES`` the ground is ignored;
    with ``reduce_zero_label=False`` and ``('ground', *CLASS_NAMES)`` it is a
    class of its own.

    Raises:
        ValueError: a thing is of no class, its shape of one and its texture
            of another.
    """
    labels = np.zeros(drawing.image.shape[:2], dtype=np.uint8)
    for thing, mask in zip(scene.things, drawing.masks):
        labels[mask] = _category(thing)
    return labels


def coco_annotations(scene: Scene, drawing: Drawing) -> list[dict]:
    """COCO's annotations of a picture, without ``id`` and ``image_id``."""
    annotations = []
    for thing, polygon in zip(scene.things, drawing.polygons):
        points = np.round(polygon, 2)
        low, high = points.min(0), points.max(0)
        box = np.round(np.concatenate([low, high - low]), 2)
        annotations.append(
            {
                'category_id': _category(thing),
                'segmentation': [points.reshape(-1).tolist()],
                'bbox': box.tolist(),
                'area': round(abs(signed_area(points)), 2),
                'iscrowd': 0,
            }
        )
    return annotations


def write_coco_json(
    path: Path,
    split: str,
    size: int,
    pictures: Sequence[tuple[int, Sequence[dict]]],
) -> None:
    """Write a split's annotation file.

    Args:
        path (Path): the JSON file.
        split (str): 'train' or 'val'.
        size (int): side of the pictures.
        pictures (Sequence): pairs of a picture's index and its annotations.
    """
    images, annotations = [], []
    for index, items in sorted(pictures, key=lambda pair: pair[0]):
        images.append(
            {
                'id': index + 1,
                'file_name': coco_path(Path(), split, index).name,
                'height': size,
                'width': size,
            }
        )
        for item in items:
            identity = {'id': len(annotations) + 1, 'image_id': index + 1}
            annotations.append({**identity, **item})
    content = {
        'info': {'description': f'demo data, {split}', 'version': '1.0'},
        'licenses': [],
        'categories': [
            {'id': label + 1, 'name': name, 'supercategory': 'thing'}
            for label, name in enumerate(CLASS_NAMES)
        ],
        'images': images,
        'annotations': annotations,
    }
    path.write_text(json.dumps(content), encoding='utf-8')
