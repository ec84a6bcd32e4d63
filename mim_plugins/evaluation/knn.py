"""Weighted k-NN classification of features, in bounded memory.

Feature rows are divided by their l2 norm; the k most similar rows of the
bank each add exp(similarity / temperature) to the score of their class.

Source: Wu et al., "Unsupervised feature learning via non-parametric instance
discrimination", section 3.4; iBOT's evaluation uses temperature 0.07 and
k = 10, 20, 100, 200.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

#: Rows of queries and of the bank that are compared at a time.
CHUNKS = (1024, 16384)


class Neighbours(NamedTuple):
    """The most similar rows of the bank, most similar first.

    Equal similarities are in the order of the bank.
    """

    similarity: Tensor  #: (M, k), cosine
    index: Tensor  #: (M, k), int64 row of the bank


@torch.no_grad()
def nearest_neighbours(
    bank: Tensor,
    queries: Tensor,
    k: int,
    chunks: tuple[int, int] = CHUNKS,
    device: torch.device | str | None = None,
) -> Neighbours:
    """Find the k rows of a bank with the largest cosine similarity.

    Memory beside the two inputs, with chunks (q, b), s bytes per number:
    ``s * (q + b) * D + (2 s + 9) * q * b`` for one step and
    ``(s + 8) * M * k`` for the result.  For ImageNet-1k with D = 384, float32
    and the default chunks: 0.3 GB and 0.1 GB (k = 200), next to a bank of
    1,281,167 * 384 * 4 bytes = 2.0 GB (D = 1024: 5.2 GB), which may stay on
    the CPU: each of its rows travels to the device once.

    Args:
        bank (Tensor): (N, D); floating point, below float32 is raised to it.
        queries (Tensor): (M, D).
        k (int): at most N.
        chunks (tuple[int, int]): rows of queries and of the bank at a time.
        device (optional): where to compute; that of ``queries`` by default.

    Returns:
        Neighbours: on the CPU.

    Raises:
        ValueError: Shapes do not fit, k is not in [1, N], or features are
            NaN or infinite.
    """
    _check_features(bank, queries)
    if not 1 <= k <= len(bank):
        raise ValueError(
            f'k={k} neighbours were asked of a bank of {len(bank)} samples; '
            f'k must lie in [1, {len(bank)}].'
        )
    device = queries.device if device is None else torch.device(device)
    dtype = torch.promote_types(bank.dtype, torch.float32)
    best: list[Neighbours | None] = [None] * len(queries.split(chunks[0]))
    for start in range(0, len(bank), chunks[1]):
        block = bank[start : start + chunks[1]].to(device, dtype)
        block = normalize(_finite(block, 'bank', start), dim=1).T
        for number, rows in enumerate(queries.split(chunks[0])):
            rows = rows.to(device, dtype)
            if start == 0:
                _finite(rows, 'queries', number * chunks[0])
            similarity = normalize(rows, dim=1) @ block
            value, index = stable_topk(similarity, min(k, block.shape[1]))
            found = Neighbours(value, index + start)
            best[number] = _merge(best[number], found, k)
    return Neighbours(
        torch.cat([found.similarity.cpu() for found in best]),
        torch.cat([found.index.cpu() for found in best]),
    )


def class_scores(
    similarity: Tensor,
    labels: Tensor,
    num_classes: int,
    temperature: float = 0.07,
) -> Tensor:
    """Sum of exp(similarity / temperature) over the neighbours of a class.

    Computed in float64 on the CPU, where the order of the additions, and so
    the result, is fixed.

    Args:
        similarity (Tensor): (M, k).
        labels (Tensor): (M, k), int64 classes of the neighbours.
        num_classes (int): C, larger than every label.
        temperature (float): at least 0.002 (exp(1 / T) must be a double).

    Returns:
        Tensor: (M, C), float64; 0 for classes without a neighbour.

    Raises:
        ValueError: The temperature is too small.
    """
    if not temperature >= 0.002:
        raise ValueError(
            f'temperature={temperature} is below 0.002: exp(1 / temperature) '
            'would overflow.'
        )
    votes = (similarity.double().cpu() / temperature).exp()
    scores = votes.new_zeros(len(votes), num_classes)
    return scores.scatter_add_(1, labels.cpu(), votes)


def ranked_classes(scores: Tensor, top: int = 5) -> Tensor:
    """Classes by falling score; equal scores by rising class number.

    Args:
        scores (Tensor): (M, C).
        top (int): how many to return.

    Returns:
        Tensor: (M, min(top, C)), int64; -1 where no further class has a
        vote.
    """
    value, index = stable_topk(scores, min(top, scores.shape[1]))
    return index.masked_fill(value <= 0, -1)


@torch.no_grad()
def knn_classify(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int | Sequence[int] = (10, 20, 100, 200),
    temperature: float = 0.07,
    num_classes: int | None = None,
    top: int = 5,
    chunks: tuple[int, int] = CHUNKS,
    device: torch.device | str | None = None,
) -> dict[int, Tensor]:
    """Classify test features by the weighted vote of their neighbours.

    The neighbours are searched once, for the largest k.

    Args:
        train_features (Tensor): (N, D), not necessarily normalised.
        train_labels (Tensor): (N,), int64, not negative.
        test_features (Tensor): (M, D).
        k (int or sequence of int): numbers of neighbours, each at most N.
        temperature (float): of the weights.
        num_classes (int, optional): C; the largest label + 1 by default.
        top (int): classes to return.
        chunks, device: see :func:`nearest_neighbours`, also for the memory.

    Returns:
        dict[int, Tensor]: for each k the (M, min(top, C)) classes by falling
        score, see :func:`ranked_classes`.

    Raises:
        ValueError: Shapes, labels or k do not fit.
    """
    ks = [k] if isinstance(k, int) else list(k)
    train_labels = train_labels.cpu()
    num_classes = _count_classes(train_features, train_labels, num_classes)
    found = nearest_neighbours(
        train_features, test_features, max(ks), chunks, device
    )
    labels = train_labels[found.index]
    ranked: dict[int, list[Tensor]] = {number: [] for number in ks}
    for number in ks:
        for similarity, classes in zip(
            found.similarity.split(chunks[0]), labels.split(chunks[0])
        ):
            scores = class_scores(
                similarity[:, :number],
                classes[:, :number],
                num_classes,
                temperature,
            )
            ranked[number].append(ranked_classes(scores, top))
    return {number: torch.cat(parts) for number, parts in ranked.items()}


def count_hits(ranked: Tensor, labels: Tensor) -> tuple[int, int]:
    """Samples whose class is first, and among those returned.

    Args:
        ranked (Tensor): (M, top), from :func:`knn_classify`.
        labels (Tensor): (M,), int64, not negative.
    """
    hits = ranked == labels.to(ranked.device)[:, None]
    return int(hits[:, :1].sum()), int(hits.sum())


def stable_topk(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``torch.topk`` in which the lower column wins among equal values.

    Args:
        values (Tensor): (M, C), without NaN.
        k (int): at most C.

    Returns:
        tuple[Tensor, Tensor]: values and int64 columns, (M, k) each.
    """
    value, index = values.topk(k, dim=1)
    # Which of the values equal to the last one were taken is up to topk:
    # rows where some were left out are sorted in full. They are rare.
    last = value[:, -1:]
    split = (values == last).sum(1) != (value == last).sum(1)
    if split.any():
        ordered = _sort(values[split])
        value[split], index[split] = ordered[0][:, :k], ordered[1][:, :k]
    index, order = index.sort(dim=1)
    value, order = _sort(value.gather(1, order))
    return value, index.gather(1, order)


def _sort(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.sort(dim=1, descending=True, stable=True)


def _merge(old: Neighbours | None, new: Neighbours, k: int) -> Neighbours:
    if old is None:
        return new
    # The old ones come from earlier rows, so a stable sort prefers them.
    value = torch.cat([old.similarity, new.similarity], dim=1)
    index = torch.cat([old.index, new.index], dim=1)
    value, order = _sort(value)
    return Neighbours(value[:, :k], index.gather(1, order)[:, :k])


def _check_features(bank: Tensor, queries: Tensor) -> None:
    for name, features in (('bank', bank), ('queries', queries)):
        if features.dim() != 2 or not features.is_floating_point():
            raise ValueError(
                f'The {name} of k-NN must be a floating point matrix (N, D), '
                f'got {features.dtype} of shape {tuple(features.shape)}.'
            )
    if bank.shape[1] != queries.shape[1]:
        raise ValueError(
            f'The bank of k-NN has features of width {bank.shape[1]}, the '
            f'queries of width {queries.shape[1]}.'
        )


def _finite(rows: Tensor, name: str, start: int) -> Tensor:
    bad = ~torch.isfinite(rows).all(1)
    if bad.any():
        first = start + int(bad.nonzero()[0])
        raise ValueError(
            f'Row {first} of the {name} of k-NN holds NaN or infinity: the '
            'network that made these features has diverged.'
        )
    return rows


def _count_classes(
    features: Tensor, labels: Tensor, num_classes: int | None
) -> int:
    if labels.dim() != 1 or len(labels) != len(features) or not len(labels):
        raise ValueError(
            f'k-NN needs one label for each of at least one feature: got '
            f'{len(features)} features and labels of shape '
            f'{tuple(labels.shape)}.'
        )
    low, high = int(labels.min()), int(labels.max())
    if num_classes is None:
        num_classes = high + 1
    if low < 0 or high >= num_classes:
        raise ValueError(
            f'Labels of k-NN lie in [{low}, {high}], which does not fit '
            f'{num_classes} classes (numbered from 0).'
        )
    return num_classes
