"""What tests of two processes run in each of them, and how."""

import os
from pathlib import Path

import torch
from mmengine import dist
from mmpretrain.registry import MODELS
from toy_ibot import TARGET, build_ibot, gradients, make_batch, mask_record

from mim_plugins.models.heads.token_norm import TokenBatchNorm

# Rows by step, process and call: also none on one process, and none at all.
COUNTS = (
    ((4, 4), (2, 7)),
    ((0, 3), (0, 0)),
    ((0, 0), (0, 0)),
    ((0, 0), (5, 0)),
)
IMAGES = 4


def spawn(folder, world_size=2):
    """Results of :func:`task` in processes of one gloo group."""
    torch.multiprocessing.spawn(
        _run_in_group, (world_size, str(folder)), world_size
    )
    return [torch.load(folder / f'{rank}.pth') for rank in range(world_size)]


def _run_in_group(rank, world_size, folder):
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        'gloo',
        init_method=f'file://{Path(folder) / "store"}',
        rank=rank,
        world_size=world_size,
    )
    try:
        torch.save(task(rank, world_size), Path(folder) / f'{rank}.pth')
    finally:
        torch.distributed.destroy_process_group()


def task(rank, world_size):
    return {
        'centres': move_centre(centre_rows(rank)),
        'norm': normalise_tokens(*norm_rows(rank, world_size)),
        'ibot': train_ibot(rank, world_size),
        'masked': train_ibot(rank, world_size, 'masked'),
    }


def random_rows(seed, rows, width):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


def centre_rows(rank):
    """The logits that one process sees: for each step a list of tensors."""
    steps = []
    for seed, counts in enumerate(COUNTS):
        sizes = [n for of_process in counts for n in of_process]
        parts = random_rows(seed, sum(sizes), 5).split(sizes)
        mine = parts[2 * rank : 2 * rank + 2]
        steps.append([part for part in mine if len(part)])
    return steps


def move_centre(steps):
    """The centre after each step."""
    target = MODELS.build({**TARGET, 'dim': 5, 'momentum': 0.6}).double()
    centres = []
    for observed in steps:
        for logits in observed:
            target.observe(logits)
        target.step()
        centres.append(target.centre.clone())
    return torch.stack(centres)


def norm_rows(rank=0, world_size=1):
    """Tokens and a cotangent (B, N, C), of unequal parts of the batch."""
    part = slice(None)
    if world_size == 2:
        part = slice(0, 5) if rank == 0 else slice(5, 8)
    return tuple(
        random_rows(seed, 24, 4).unflatten(0, (8, 3))[part] for seed in (7, 8)
    )


def normalise_tokens(tokens, cotangent, kind=TokenBatchNorm):
    """Output, gradients and statistics of two calls of batch norm."""
    norm = kind(tokens.shape[-1]).double()
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


def train_ibot(rank=0, world_size=1, centre_tokens='all'):
    """One step on this process's images, gradients averaged as DDP does."""
    torch.manual_seed(0)
    model = build_ibot()
    model.objectives['patch'].centre_tokens = centre_tokens
    inputs = make_batch(batch=IMAGES, padding=0)
    # the second half of the images has no masked tokens
    mask = inputs['masks']['global']['mask'].view(2, IMAGES, -1)
    mask[:, IMAGES // 2 :] = False
    images = slice(None)
    if world_size == 2:
        images = slice(rank * IMAGES // 2, (rank + 1) * IMAGES // 2)

    def mine(rows):
        return rows.unflatten(0, (-1, IMAGES))[:, images].flatten(0, 1)

    for key in ('views', 'boxes'):
        inputs[key] = {g: mine(rows) for g, rows in inputs[key].items()}
    inputs['masks'] = {'global': mask_record(mine(mask.flatten(0, 1)), (3, 3))}
    parts = model(inputs, mode='loss')
    sum(parts.values()).backward()
    model.after_optimizer_step()
    found = gradients(model)
    found.update({key: value.detach() for key, value in parts.items()})
    for value in found.values():
        dist.all_reduce(value, 'mean')
    for name, objective in model.objectives.items():
        found[f'{name}_centre'] = objective.normalization.centre
    return found
