"""A short measurement: does this device compute in bfloat16 fast?"""

import functools
import time

import torch
from torch import nn

# After this time no further round of the measurement is begun.
SECONDS = 0.5


def _best_time(dtype: torch.dtype, repeats: int) -> float:
    """Shortest of some passes through an MLP, in seconds."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1024, 192, generator=generator)
    with torch.random.fork_rng(devices=[]):
        mlp = nn.Sequential(nn.Linear(192, 768), nn.Linear(768, 192))
    best = float('inf')
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.autocast('cpu', torch.bfloat16, dtype != torch.float32):
            out = mlp(x)
        out.float().sum().backward()
        best = min(best, time.perf_counter() - start)
    return best


@functools.cache
def supports_fast_bf16(device_type: str = 'cpu') -> bool:
    """Whether training in bfloat16 is worth while on a device.

    A CUDA device is asked, a processor is measured (about a second at most,
    once per process): forward and backward of a small MLP, float32 and
    autocast to bfloat16 in turn, the shortest time of each, so that another
    busy job does not decide.  bfloat16 counts as fast at 1.2 times the speed
    or more.
    On other devices the answer is no.
    """
    if device_type == 'cuda':
        return torch.cuda.is_available() and _cuda_has_bf16()
    if device_type != 'cpu':
        return False
    _best_time(torch.float32, 1)
    _best_time(torch.bfloat16, 1)
    full = half = float('inf')
    end = time.perf_counter() + SECONDS
    for _ in range(4):
        full = min(full, _best_time(torch.float32, 2))
        half = min(half, _best_time(torch.bfloat16, 2))
        if time.perf_counter() > end:
            break
    return half * 1.2 <= full


def _cuda_has_bf16() -> bool:
    """bfloat16 units from compute capability 8.0 on (before: emulated)."""
    return torch.cuda.get_device_capability()[0] >= 8
