"""Pictures of trained networks and of runs: data in, picture out."""

from .attention import (
    attention_maps,
    cls_attention,
    draw_attention,
    visualize_attention,
)
from .curves import Curve, draw_curves, find_logs, read_curves

__all__ = [
    'Curve',
    'attention_maps',
    'cls_attention',
    'draw_attention',
    'draw_curves',
    'find_logs',
    'read_curves',
    'visualize_attention',
]
