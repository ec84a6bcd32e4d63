from .convert import Conversion, convert
from .errors import CheckpointError, CheckpointMismatch, UnsafeCheckpoint
from .export import export_backbone, save_backbone
from .huggingface import huggingface_to_ours, ours_to_huggingface
from .keymaps import (
    ibot_backbone_to_ours,
    ibot_head_to_ours,
    ours_to_ibot_backbone,
    ours_to_ibot_head,
)
from .layouts import find_backbone
from .load import LoadReport, load_backbone, load_pretrained
from .networks import ibot_to_ours, ours_to_ibot
from .safe import load_file

__all__ = [
    'CheckpointError',
    'CheckpointMismatch',
    'Conversion',
    'LoadReport',
    'UnsafeCheckpoint',
    'convert',
    'export_backbone',
    'find_backbone',
    'huggingface_to_ours',
    'ibot_backbone_to_ours',
    'ibot_head_to_ours',
    'ibot_to_ours',
    'load_backbone',
    'load_file',
    'load_pretrained',
    'ours_to_huggingface',
    'ours_to_ibot',
    'ours_to_ibot_backbone',
    'ours_to_ibot_head',
    'save_backbone',
]
