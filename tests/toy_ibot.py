"""A tiny iBOT and batches for it."""

import torch
from mmpretrain.registry import MODELS

import mim_plugins  # noqa: F401

PATCH = 4
WIDTH = 12
TARGET = {'type': 'CentreSharpen'}


def student_config(**changes):
    arch = {
        'embed_dims': WIDTH,
        'num_layers': 2,
        'num_heads': 2,
        'feedforward_channels': 16,
    }
    return {
        'type': 'MaskedVisionTransformer',
        'arch': arch,
        'img_size': 3 * PATCH,
        'patch_size': PATCH,
        **changes,
    }


def head_config(**changes):
    return {
        'type': 'IBOTHead',
        'out_dim': 10,
        'hidden_dim': 14,
        'bottleneck_dim': 8,
        **changes,
    }


def objective_configs(**changes):
    """``cls`` and ``patch``; a change by name, None switches one off."""
    configs = {
        'cls': {'type': 'ClsDistillation', 'normalization': TARGET},
        'patch': {'type': 'MaskedPatchDistillation', 'normalization': TARGET},
    }
    return {**configs, **changes}


def build_ibot(
    student=None, head=None, objectives=None, dtype=torch.float64, **others
):
    """An ``IBOT`` whose student, teacher and centres all differ."""
    model = MODELS.build(
        {
            'type': 'IBOT',
            'student': student_config(**(student or {})),
            'head': head_config(**(head or {})),
            'objectives': objectives or objective_configs(),
            **others,
        }
    ).to(dtype)
    return perturb(model)


@torch.no_grad()
def perturb(model):
    """Let student, teacher and centres differ."""
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    for name, buffer in model.named_buffers():
        if name.endswith('centre'):
            buffer.copy_(0.1 * torch.randn_like(buffer))
    return model


def mask_record(mask, grid, padding=3, dtype=torch.float64):
    """What the collate function makes of a bool mask ``(V * B, N)``."""
    index = mask.flatten().nonzero().flatten()
    share = mask.to(dtype) / mask.sum(1, keepdim=True).clamp(min=1)
    return {
        'mask': mask,
        'grid': grid,
        'index': torch.nn.functional.pad(index, (0, padding)),
        'weight': torch.nn.functional.pad(share[mask], (0, padding)),
        'count': len(index),
    }


def make_batch(
    batch=3,
    views=2,
    local=2,
    grid=(3, 3),
    ratio=0.4,
    masked=('global',),
    dtype=torch.float64,
    padding=3,
):
    """Inputs of a model, with random views, masks and boxes.

    Args:
        ratio: share of masked tokens; None for no masks at all.
    """
    numbers = {'global': views, 'local': local}
    numbers = {group: n for group, n in numbers.items() if n}
    grids = {'global': grid, 'local': (2, 2)}
    inputs = {'views': {}, 'num_views': numbers, 'boxes': {}, 'masks': {}}
    for group, n in numbers.items():
        h, w = grids[group]
        inputs['views'][group] = torch.randn(
            n * batch, 3, h * PATCH, w * PATCH, dtype=dtype
        )
        boxes = torch.rand(n * batch, 5) * 20
        boxes[:, 2:4] += 30
        boxes[:, 4] = torch.randint(2, (n * batch,))
        inputs['boxes'][group] = boxes
        if ratio is not None and group in masked:
            mask = torch.rand(n * batch, h * w) < ratio
            inputs['masks'][group] = mask_record(mask, (h, w), padding, dtype)
    if ratio is None:
        del inputs['masks']
    return inputs


def total_loss(parts):
    return sum(value for key, value in parts.items() if 'loss' in key)


def gradients(model):
    """Clones of all gradients by name; those that are None are left out."""
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
