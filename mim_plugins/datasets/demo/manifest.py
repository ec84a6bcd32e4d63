"""What a demo data set is made of, and whether a folder holds it, whole."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .layouts import LAYOUTS
from .scene import DEMO_CLASSES

GENERATOR_VERSION = 1
MANIFEST = 'demo_data.json'


class DemoDataError(RuntimeError):
    """The folder cannot be used or written as asked."""


@dataclass(frozen=True)
class DemoDataConfig:
    """What a demo data set holds; equal configs give equal bytes.

    Args:
        train (int): pictures to train on.
        val (int): pictures to evaluate on.
        size (int): side of the ImageNet layout's pictures, of one thing.
        scene_size (int): side of the ADE20K and COCO layouts' pictures.
        scene_things (tuple): fewest and most things in one of the latter.
            With (1, 1) it shows what the ImageNet picture of that index
            shows.
        seed (int): other seeds give other pictures.
        layouts (tuple): any of 'imagenet', 'ade20k', 'coco'.
        quality (int): of the JPEG files, 1 to 95.
        supersample (int): edges are drawn at this multiple of the size.

    Raises:
        ValueError: a number is out of range or a layout has no such name.
    """

    train: int = 4000
    val: int = 1000
    size: int = 64
    scene_size: int = 128
    scene_things: tuple[int, int] = (1, 4)
    seed: int = 0
    layouts: tuple[str, ...] = LAYOUTS
    quality: int = 90
    supersample: int = 3

    def __post_init__(self):
        unknown = set(self.layouts) - set(LAYOUTS)
        if unknown or not self.layouts:
            raise ValueError(
                f'layouts are some of {", ".join(LAYOUTS)}, not '
                f'{", ".join(sorted(unknown)) or "an empty list"}'
            )
        ordered = tuple(x for x in LAYOUTS if x in self.layouts)
        object.__setattr__(self, 'layouts', ordered)
        low, high = self.scene_things
        object.__setattr__(self, 'scene_things', (low, high))
        if not 1 <= low <= high:
            raise ValueError(
                'scene_things is the fewest and the most things in a '
                f'picture, at least one; got {self.scene_things}'
            )
        for name, least, most in (
            ('train', 1, 10**6),
            ('val', 1, 10**6),
            ('size', 16, 4096),
            ('scene_size', 16, 4096),
            ('seed', 0, 2**63),
            ('quality', 1, 95),
            ('supersample', 1, 16),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(
                    f'{name} must be from {least} to {most}, not {value}'
                )


def count_files(root: Path) -> int:
    """Number of files below a folder, without the manifest."""
    total = sum(len(names) for _, _, names in os.walk(root))
    return total - (root / MANIFEST).is_file()


def _parameters(config: DemoDataConfig) -> dict[str, Any]:
    """The config as it reads after a turn through JSON."""
    return json.loads(json.dumps(asdict(config)))


def check_existing(out: Path, config: DemoDataConfig) -> bool:
    """Whether a folder holds exactly this data set, whole.

    Returns:
        bool: True if it does, False if there is nothing in the way.

    Raises:
        DemoDataError: there is something else.
    """
    if not out.exists():
        return False
    if not out.is_dir():
        raise DemoDataError(
            f'{out} is a file; give a folder that does not exist yet'
        )
    if not any(out.iterdir()):
        return False
    manifest = _read_manifest(out)
    asked = _parameters(config)
    if manifest.get('generator_version') != GENERATOR_VERSION:
        difference = (
            'it was written by version '
            f'{manifest.get("generator_version")} of the generator, this '
            f'is version {GENERATOR_VERSION}'
        )
    elif manifest.get('parameters') != asked:
        found = manifest.get('parameters') or {}
        changed = [
            f'{name} is {found.get(name)}, asked for is {value}'
            for name, value in asked.items()
            if found.get(name) != value
        ]
        difference = '; '.join(changed)
    elif manifest.get('files') != count_files(out):
        difference = (
            f'{count_files(out)} of {manifest.get("files")} files are there'
        )
    else:
        return True
    raise DemoDataError(
        f'{out} holds other demo data: {difference}. Choose another folder, '
        'or replace it with --overwrite (overwrite=True)'
    )


def _read_manifest(out: Path) -> dict[str, Any]:
    path = out / MANIFEST
    if not path.is_file():
        raise DemoDataError(
            f'{out} is not empty and holds no {MANIFEST}: it is not whole '
            'demo data. Choose another folder, or empty it yourself'
        )
    try:
        return dict(json.loads(path.read_text(encoding='utf-8')))
    except (TypeError, ValueError) as error:
        raise DemoDataError(
            f'{path} cannot be understood ({error}). Choose another folder, '
            'or replace it with --overwrite (overwrite=True)'
        ) from error


def write_manifest(root: Path, config: DemoDataConfig) -> None:
    manifest = {
        'generator_version': GENERATOR_VERSION,
        'parameters': _parameters(config),
        'classes': [item._asdict() for item in DEMO_CLASSES],
        'files': count_files(root),
    }
    text = json.dumps(manifest, indent=2) + '\n'
    (root / MANIFEST).write_text(text, encoding='utf-8')
