from .base import Objective
from .cls_distillation import ClsDistillation
from .masked import MaskedObjective
from .patch_distillation import MaskedPatchDistillation
from .patch_matching import PatchMatching
from .token_prediction import TokenPrediction

__all__ = [
    'ClsDistillation',
    'MaskedObjective',
    'MaskedPatchDistillation',
    'Objective',
    'PatchMatching',
    'TokenPrediction',
]
