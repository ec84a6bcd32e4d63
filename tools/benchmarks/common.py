"""What the benchmark scripts share: the machine, and interleaved timing."""

import argparse
import json
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope


def make_parser(
    description: str, batch_size: int, rounds: int, timed: str
) -> argparse.ArgumentParser:
    """Options of every benchmark.

    Args:
        description: of the script.
        batch_size, rounds: defaults.
        timed: what a round times, for the help.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--config', required=True, help='pre-training config')
    parser.add_argument(
        '--batch-size', type=int, default=batch_size, metavar='B'
    )
    parser.add_argument(
        '--rounds', type=int, default=rounds, help=f'timed {timed} of each'
    )
    parser.add_argument('--json', metavar='FILE', help='write the figures')
    return parser


def load_config(path: str) -> Config:
    """A config whose parts can be built, mmengine's lines kept quiet."""
    logging.disable(logging.WARNING)  # it names every weight
    try:
        cfg = Config.fromfile(path)
    except FileNotFoundError:
        sys.exit(f'There is no config {path}.')
    init_default_scope(cfg.get('default_scope', 'mmpretrain'))
    return cfg


def processor() -> str:
    """Name of the processor, as the system gives it."""
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith('model name'):
            return line.split(':', 1)[1].strip()
    return platform.processor() or platform.machine()


def describe_machine(packages: tuple[str, ...] = ('torch',)) -> dict:
    """What a figure depends on beside the code.

    Args:
        packages: distributions whose versions are named.
    """
    machine = {
        'processor': processor(),
        'cores': os.cpu_count(),
        'threads': torch.get_num_threads(),
        'python': platform.python_version(),
    }
    if torch.cuda.is_available():
        machine['gpu'] = torch.cuda.get_device_name()
    for name in packages:
        try:
            machine[name] = version(name)
        except PackageNotFoundError:
            continue
    return machine


def print_table(values: Mapping) -> None:
    """One ``name: value`` a line, aligned."""
    width = max(len(str(name)) for name in values)
    for name, value in values.items():
        print(f'{name!s:<{width}}  {value}')


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
) -> dict[str, float]:
    """Median seconds of each function, run in turn.

    Taking turns lets whatever else the machine does fall on all of them.

    Args:
        functions: by name.
        rounds: timed calls of each.
        warmup: calls of each before that.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(warmup + rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if i >= warmup:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def write_json(path: str, result: Mapping) -> None:
    """Write a result for other programs."""
    Path(path).write_text(json.dumps(result, indent=2) + '\n')
