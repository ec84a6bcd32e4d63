"""What tests of two processes run in each of them."""

import dataclasses

import torch
from mmengine import dist
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import build_optim_wrapper
from mmpretrain.registry import MODELS
from toy_ibot import (
    TARGET,
    build_ibot,
    gradients,
    make_batch,
    mask_record,
    perturb,
    total_loss,
)
from toy_resume import METHODS
from toy_runs import in_processes

from mim_plugins.models.heads.token_norm import TokenBatchNorm

# Rows by step, process and call: also none on one process, and none at all.
COUNTS = (
    ((4, 4), (2, 7)),
    ((0, 3), (0, 0)),
    ((0, 0), (0, 0)),
    ((0, 0), (5, 0)),
)
IMAGES = 4


def spawn(folder, processes=2):
    """Results of :func:`task` in processes of one gloo group."""
    return in_processes(task, folder, processes=processes)


def task(rank):
    world_size = dist.get_world_size()
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


@dataclasses.dataclass(frozen=True)
class Case:
    """A training whose result must not depend on the number of processes."""

    method: str = 'ibot'
    drop_path: float = 0.0
    norm: str | None = None
    clip: str = 'tensor'
    accumulation: int = 1


def train(case, rank=0, processes=1, steps=5):
    """Optimizer steps on images ``rank::processes`` of each batch.

    Returns a dict by name: losses, clipped gradients and gradient norm of
    every step, and in the end all parameters and buffers.
    """
    torch.manual_seed(0)
    head, student = {'norm': case.norm}, {'drop_path_rate': case.drop_path}
    model = MODELS.build(METHODS[case.method](student=student, head=head))
    network = perturb(model.double())
    if dist.is_distributed():
        network = MMDistributedDataParallel(model, broadcast_buffers=False)
    wrapper = optimizer_of(network, case)
    iterations = steps * case.accumulation
    wrapper.initialize_count_status(network, 0, iterations)
    found = {}

    def note_gradients(*_):
        step = f'step {wrapper._inner_count // case.accumulation}'
        found[f'{step} norm'] = wrapper.grad_norm
        for name, gradient in gradients(model).items():
            found[f'{step} gradient {name}'] = gradient

    wrapper.optimizer.register_step_pre_hook(note_gradients)
    for i in range(iterations):
        inputs = part_of(ragged_batch(i), rank, processes)
        model.start_iteration(3, i)
        with wrapper.optim_context(network):
            loss = total_loss(network(inputs, mode='loss'))
        found[f'loss {i}'] = dist_mean(loss.detach())
        wrapper.update_params(loss)
        if wrapper.stepped:
            model.after_optimizer_step(wrapper.watch.halted)
    return {**found, **model.state_dict()}


def optimizer_of(network, case):
    """The optimizer of pre-training, clipping nearly every gradient.

    Some gradients are zero but for rounding: of biases of keys, and of those
    before a batch norm. Adam makes that large, unless its epsilon is larger.
    """
    optimizer = {
        'type': 'AdamW',
        'lr': 1e-3,
        'weight_decay': 0.1,
        'eps': 1e-6,
    }
    cfg = {
        'type': 'PretrainOptimWrapper',
        'optimizer': optimizer,
        'constructor': 'PretrainOptimConstructor',
        'clip': {'max_norm': 1e-2, 'mode': case.clip},
        'accumulative_counts': case.accumulation,
    }
    return build_optim_wrapper(network, cfg)


def ragged_batch(iteration):
    """Masks of all sizes, in some iterations none on odd images, or at all."""
    torch.manual_seed(100 + iteration)
    inputs = make_batch(batch=IMAGES)
    masks = inputs['masks']['global']['mask'].view(2, IMAGES, -1)
    if iteration % 4 == 1:
        masks[:, 1::2] = False
    elif iteration % 4 == 2:
        masks[:] = False
    return inputs


def part_of(inputs, rank, processes):
    """The images that ``PassSampler`` gives to one process."""

    def mine(rows):
        return rows.unflatten(0, (-1, IMAGES))[:, rank::processes].flatten(
            0, 1
        )

    mask = mine(inputs['masks']['global']['mask'])
    return {
        'views': {g: mine(rows) for g, rows in inputs['views'].items()},
        'boxes': {g: mine(rows) for g, rows in inputs['boxes'].items()},
        'num_views': inputs['num_views'],
        'masks': {'global': mask_record(mask, (3, 3))},
    }


def dist_mean(value):
    dist.all_reduce(value, 'mean')
    return value
