"""Demo data: small pictures of textured shapes on textured grounds."""

from .draw import Drawing, draw
from .generate import make_demo_data, make_scene
from .layouts import LAYOUTS
from .manifest import (
    GENERATOR_VERSION,
    MANIFEST,
    DemoDataConfig,
    DemoDataError,
    check_existing,
)
from .scene import (
    CLASS_NAMES,
    DEMO_CLASSES,
    DemoClass,
    Ground,
    Scene,
    Thing,
    random_ground,
    random_scene,
    random_thing,
)
from .shapes import SHAPES, outline
from .textures import GROUNDS, TEXTURES

__all__ = [
    'CLASS_NAMES',
    'DEMO_CLASSES',
    'GENERATOR_VERSION',
    'GROUNDS',
    'LAYOUTS',
    'MANIFEST',
    'SHAPES',
    'TEXTURES',
    'DemoClass',
    'DemoDataConfig',
    'DemoDataError',
    'Drawing',
    'Ground',
    'Scene',
    'Thing',
    'check_existing',
    'draw',
    'make_demo_data',
    'make_scene',
    'outline',
    'random_ground',
    'random_scene',
    'random_thing',
]
