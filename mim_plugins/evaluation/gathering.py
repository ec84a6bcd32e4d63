"""Parts of processes put together in the order of the data set."""

import logging
from dataclasses import dataclass

import torch
from mmengine.dist import all_gather, all_reduce, get_world_size
from mmengine.logging import print_log
from torch import Tensor

#: Rows that each process sends at a time.
GATHER_ROWS = 8192


@dataclass
class FeatureSet:
    """Features of a data set, in the order of the data set.

    Args:
        features (Tensor): (N, D), at least float32, on the CPU.
        labels (Tensor, optional): (N,), int64; None without labels.
    """

    features: Tensor
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.features)


def gather_features(
    features: Tensor | None,
    labels: Tensor | None,
    indices: Tensor,
    size: int,
) -> FeatureSet:
    """Put the parts of all processes in the order of the data set.

    Args:
        features (Tensor, optional): (n, D) of this process; None if n = 0.
        labels (Tensor, optional): (n,); present on all processes or none.
        indices (Tensor): (n,), int64, places in the data set. A place that
            occurs more than once is filled once.
        size (int): N, of the data set; places that no process holds are left
            out (a loader with ``drop_last``), which is said.
    """
    alone = get_world_size() == 1 and features is not None
    if alone and torch.equal(indices, torch.arange(size)):
        return FeatureSet(features, labels)
    counts = torch.cat(all_gather(torch.tensor([len(indices)])))
    rows, width = int(counts.max()), _common_width(features)
    dtype = torch.float64 if _is_double(features) else torch.float32
    if features is None:
        features = torch.zeros(0, width, dtype=dtype)
    whole = torch.zeros(size, width, dtype=dtype)
    classes = None if labels is None else torch.full((size,), -1)
    seen = torch.zeros(size, dtype=torch.bool)
    for start in range(0, rows, GATHER_ROWS):
        stop = min(start + GATHER_ROWS, rows)
        places = _gather_rows(indices, start, stop, -1)
        real = places >= 0
        places = places[real]
        whole[places] = _gather_rows(features.to(dtype), start, stop, 0)[real]
        if labels is not None:
            classes[places] = _gather_rows(labels, start, stop, -1)[real]
        seen[places] = True
    if not seen.all():
        print_log(
            f'{int((~seen).sum())} of {size} samples are left out of the '
            'evaluation, because the data loader skips them.',
            'current',
            level=logging.WARNING,
        )
        whole, classes = whole[seen], None if labels is None else classes[seen]
    return FeatureSet(whole, classes)


def gather_vector(values: Tensor) -> Tensor:
    """Concatenate vectors (n,) of any length over the processes."""
    if get_world_size() == 1:
        return values
    lengths = [int(n) for n in all_gather(torch.tensor([len(values)]))]
    padding = values.new_zeros(max(lengths) - len(values))
    parts = all_gather(torch.cat([values, padding]))
    return torch.cat([part[:n] for part, n in zip(parts, lengths)])


def every_process(flag: bool) -> bool:
    """Whether a flag is set on all processes."""
    value = torch.tensor(int(flag))
    all_reduce(value, 'min')
    return bool(value)


def _common_width(features: Tensor | None) -> int:
    width = torch.tensor(0 if features is None else features.shape[1])
    all_reduce(width, 'max')
    return int(width)


def _is_double(features: Tensor | None) -> bool:
    double = features is not None and features.dtype == torch.float64
    value = torch.tensor(int(double))
    all_reduce(value, 'max')
    return bool(value)


def _gather_rows(
    values: Tensor, start: int, stop: int, padding: int
) -> Tensor:
    part = values[start:stop]
    missing = (stop - start - len(part), *values.shape[1:])
    filled = torch.cat([part, part.new_full(missing, padding)])
    return torch.cat(all_gather(filled))
