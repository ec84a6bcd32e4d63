"""A tiny iBOT, batches for it, and functions that run in processes."""

import os
from pathlib import Path

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
    model.init_weights()
    with torch.no_grad():
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
            inputs['masks'][group] = mask_record(
                mask, (h, w), padding, dtype
            )
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


def join_group(rank, world_size, folder):
    """Make this process one of a gloo group."""
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        'gloo',
        init_method=f'file://{Path(folder) / "store"}',
        rank=rank,
        world_size=world_size,
    )


def run_in_group(rank, world_size, folder, function):
    """Run ``function(rank)`` in each process and save what it returns."""
    join_group(rank, world_size, folder)
    try:
        torch.save(function(rank), Path(folder) / f'{rank}.pth')
    finally:
        torch.distributed.destroy_process_group()


def spawn(function, folder, world_size=2):
    """Results of ``function(rank)`` in processes of one group."""
    torch.multiprocessing.spawn(
        run_in_group, (world_size, str(folder), function), world_size
    )
    return [torch.load(folder / f'{rank}.pth') for rank in range(world_size)]


def random_logits(seed, rows, width):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        rows, width, generator=generator, dtype=torch.float64
    )


def move_centre(rows):
    """Three steps of a centre; step i sees the i-th list of tensors."""
    target = MODELS.build({**TARGET, 'dim': 5, 'momentum': 0.6}).double()
    centres = []
    for step in rows:
        for logits in step:
            target.observe(logits)
        target.step()
        centres.append(target.centre.clone())
    return torch.stack(centres)


def normalise_tokens(tokens, cotangent):
    """Output, gradients and statistics of two calls of batch norm."""
    from mim_plugins.models.heads.token_norm import TokenBatchNorm

    norm = TokenBatchNorm(tokens.shape[-1]).double()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, tokens.shape[-1]))
        norm.bias.copy_(torch.linspace(-1, 1, tokens.shape[-1]))
    tokens = tokens.clone().requires_grad_()
    out = norm(norm(tokens).sin())
    (out * cotangent).sum().backward()
    return {
        'out': out.detach(),
        'grad': tokens.grad,
        'weight_grad': norm.weight.grad,
        'bias_grad': norm.bias.grad,
        'mean': norm.running_mean,
        'var': norm.running_var,
        'steps': norm.num_batches_tracked,
    }


# Rows per step and process: equal, unequal, only one process, and none.
COUNTS = (((4, 4), (2, 7)), ((0, 3), (0, 0)), ((0, 0), (5, 0)))


def group_task(rank):
    """What the test of two processes runs in each of them."""
    rows = []
    for step, counts in enumerate(COUNTS):
        logits = random_logits(step, sum(map(sum, counts)), 5)
        parts = iter(logits.split([n for c in counts for n in c]))
        mine = [next(parts) for _ in range(2 * rank + 2)][2 * rank :]
        rows.append([part for part in mine if len(part)])
    tokens = random_logits(7, 8 * 3, 4).unflatten(0, (8, 3))
    cotangent = random_logits(8, 8 * 3, 4).unflatten(0, (8, 3))
    part = slice(0, 5) if rank == 0 else slice(5, 8)
    return {
        'centres': move_centre(rows),
        'norm': normalise_tokens(tokens[part], cotangent[part]),
    }
