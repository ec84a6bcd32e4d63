"""What the benchmark scripts share: the machine, and interleaved timing."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


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
