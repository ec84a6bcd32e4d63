"""Time and memory of a training step, against the literal one.

    python tools/benchmarks/train_step.py --config CONFIG --reference

The reference (mim_plugins.testing.literal_step) is a step of the official
code in float32: explicit attention, heads on every token, a log-softmax for
every pair of views, tensor-by-tensor clipping, optimizer and moving average.
All see the same random pictures and masks, and take their steps in turn.
Bytes are those of tensors saved for the backward pass, and the rise of the
resident memory in a fresh process.
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import (  # noqa: E402
    describe_machine,
    interleave,
    load_config,
    make_parser,
    print_table,
    write_json,
)
from mmengine.config import Config  # noqa: E402
from mmengine.runner import Runner  # noqa: E402
from mmpretrain.registry import MODELS, TRANSFORMS  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import mim_plugins  # noqa: E402, F401
from mim_plugins.datasets.collate import batch_masks  # noqa: E402
from mim_plugins.engine.probe import supports_fast_bf16  # noqa: E402
from mim_plugins.testing.literal_step import LiteralStep  # noqa: E402

PRECISIONS = {'float32': 'fp32', 'bfloat16': 'bf16'}
Step = Callable[[], object]


def random_batch(cfg: Config, size: int) -> dict:
    """A collated batch of noise in the sizes of a config's views."""
    dataset = cfg.train_dataloader.dataset
    channels = len(cfg.model.get('data_preprocessor', {}).get('mean', 'rgb'))
    sides, counts = {}, {}
    for name, view in dataset.views.items():
        if not view or not view.get('num', 1):
            continue
        group = view.get('group', name)
        side = view['size']
        sides[group] = (side, side) if isinstance(side, int) else side
        counts[group] = counts.get(group, 0) + view.get('num', 1)
    generator = torch.Generator().manual_seed(0)
    views = {
        group: torch.randint(
            256,
            (counts[group] * size, channels, *side),
            generator=generator,
            dtype=torch.uint8,
        )
        for group, side in sides.items()
    }
    inputs = {'views': views, 'num_views': counts}
    if dataset.get('mask'):
        inputs['masks'] = _random_masks(dataset.mask, sides, counts, size)
    return {'inputs': inputs, 'data_samples': [None] * size}


def _random_masks(cfg: dict, sides: dict, counts: dict, size: int) -> dict:
    mask = TRANSFORMS.build(cfg)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(size):
        views = {
            group: [torch.empty(3, *side, dtype=torch.uint8)] * counts[group]
            for group, side in sides.items()
        }
        drawn.append(mask({'views': views, 'rng': rng, 'epoch': 10**6}))
    return {
        group: batch_masks(np.stack([d['masks'][group] for d in drawn], 1))
        for group in drawn[0]['masks']
    }


def build_model(cfg: Config, **student: object) -> torch.nn.Module:
    """The config's model with its start values, ready to train."""
    torch.manual_seed(0)
    config = Config(dict(model=cfg.model)).model
    config.student.update(student)
    model = MODELS.build(config)
    model.init_weights()
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    return model.to(device).train()


def our_step(cfg: Config, size: int, precision: str) -> Step:
    """A step as the Runner makes it, hooks apart."""
    model = build_model(cfg)
    wrapper_cfg = dict(cfg.optim_wrapper, precision=PRECISIONS[precision])
    wrapper = Runner.build_optim_wrapper(
        _Holder(model), Config(dict(w=wrapper_cfg)).w
    )
    batch = random_batch(cfg, size)
    iterations = itertools.count()

    def step():
        model.start_iteration(0, next(iterations))
        model.train_step(batch, wrapper)
        model.after_optimizer_step()

    return step


class _Holder:
    """All that ``Runner.build_optim_wrapper`` wants of a Runner."""

    def __init__(self, model: torch.nn.Module):
        self.model = model


def literal_step(cfg: Config, size: int) -> Step:
    """A step of the reference, normalisation of the pictures included."""
    model = build_model(cfg, attention='explicit')
    optimizer = cfg.optim_wrapper.optimizer
    step = LiteralStep(model, optimizer.lr, optimizer.weight_decay)
    batch = random_batch(cfg, size)
    return lambda: step(model.data_preprocessor(batch, True)['inputs'])


def build_step(cfg: Config, size: int, name: str) -> Step:
    """``'reference'``, ``'float32'`` or ``'bfloat16'``."""
    if name == 'reference':
        return literal_step(cfg, size)
    return our_step(cfg, size, name)


# -- figures ---------------------------------------------------------------


def saved_bytes(step: Step) -> int:
    """Bytes of the tensors that a step keeps for its backward pass."""
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        step()
    return sum(storages.values())


def resident_rise(step: Step) -> int:
    """Rise of the process's resident memory in two steps, in bytes.

    On a GPU, of the memory that its tensors take.
    """
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        step()
        return torch.cuda.max_memory_allocated() - before
    before = _status('VmRSS')
    step()
    step()
    return _status('VmHWM') - before


def _status(name: str) -> int:
    """An entry of the process's status, in bytes (Linux)."""
    lines = Path('/proc/self/status').read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f'{name}:'))
    return int(line.split()[1]) * 1024


def in_fresh_process(args: argparse.Namespace, name: str) -> dict:
    """Memory of one kind of step, measured where nothing else ran."""
    command = [
        sys.executable,
        __file__,
        *('--config', args.config, '--batch-size', str(args.batch_size)),
        *('--memory-of', name),
    ]
    if args.threads:
        command += ['--threads', str(args.threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def matrix_peak(dtype: torch.dtype, size: int = 2048) -> Step:
    """A product of square matrices, 2 size^3 operations."""
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    x = torch.randn(size, size, device=device).to(dtype)
    return lambda: x @ x


def operations(step: Step) -> int:
    """Floating-point operations of matrix products in a step."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def measure(args: argparse.Namespace, cfg: Config) -> dict:
    """All figures by precision; what does not apply is a string."""
    names = ['float32']
    if supports_fast_bf16('cuda' if torch.cuda.is_available() else 'cpu'):
        names.append('bfloat16')
    kinds = names + (['reference'] if args.reference else [])
    steps = {kind: build_step(cfg, args.batch_size, kind) for kind in kinds}
    work = {name: operations(steps[name]) for name in names}
    peaks = {
        name: 2 * 2048**3 / min_time(matrix_peak(getattr(torch, name)))
        for name in names
    }
    seconds = interleave(steps, args.rounds)
    del steps
    memory = {kind: in_fresh_process(args, kind) for kind in kinds}
    result = {'bfloat16': 'not applicable'}
    for name in names:
        result[name] = {
            'seconds': seconds[name],
            'tflop': work[name] / 1e12,
            'peak_share': work[name] / seconds[name] / peaks[name],
            'peak_gflop_per_s': peaks[name] / 1e9,
            **memory[name],
        }
        if args.reference:
            ratios = {
                key: memory[name][key] / memory['reference'][key]
                for key in memory[name]
            }
            result[name]['speedup'] = seconds['reference'] / seconds[name]
            result[name]['memory_ratio'] = max(ratios.values())
            result[name]['memory_ratios'] = ratios
    if args.reference:
        result['reference'] = {
            'seconds': seconds['reference'],
            **memory['reference'],
        }
    return result


def min_time(function: Step) -> float:
    """Shortest of ten calls, in seconds."""
    return min(interleave({'x': function}, 1)['x'] for _ in range(10))


def report(result: dict) -> None:
    """Print the figures, one line each."""
    for name, figures in result.items():
        if isinstance(figures, str):
            print(f'{name}: {figures}')
            continue
        print(
            f'{name}: {figures["seconds"]:.3f} s, '
            f'{figures["saved_bytes"] / 2**20:.0f} MiB saved for backward, '
            f'resident memory +{figures["resident_bytes"] / 2**20:.0f} MiB'
        )
        if 'tflop' in figures:
            print(
                f'    {figures["tflop"]:.3f} TFLOP in matrix products, '
                f'{figures["peak_share"]:.0%} of the measured peak of '
                f'{figures["peak_gflop_per_s"]:.0f} GFLOP/s'
            )
        if 'speedup' in figures:
            ratios = figures['memory_ratios']
            print(
                f'    {figures["speedup"]:.2f} x the speed of the reference, '
                f'{ratios["saved_bytes"]:.2f} of its saved bytes, '
                f'{ratios["resident_bytes"]:.2f} of its resident memory'
            )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, batch_size=8, rounds=5, timed='steps')
    parser.add_argument(
        '--reference',
        action='store_true',
        help='compare with the literal step (configs of IBOT)',
    )
    parser.add_argument('--threads', type=int, help='threads of torch')
    parser.add_argument('--memory-of', help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    cfg = load_config(args.config)
    if args.memory_of:
        step = build_step(cfg, args.batch_size, args.memory_of)
        rise = resident_rise(step)
        figures = {'saved_bytes': saved_bytes(step), 'resident_bytes': rise}
        print(json.dumps(figures))
        return
    print_table(
        {
            **describe_machine(('torch', 'onedl-mmengine', 'mmengine')),
            'config': args.config,
            'batch': args.batch_size,
            'rounds': args.rounds,
        }
    )
    result = measure(args, cfg)
    report(result)
    if args.json:
        write_json(args.json, result)


if __name__ == '__main__':
    main()
