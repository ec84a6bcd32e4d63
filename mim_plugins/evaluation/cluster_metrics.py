"""Agreement of a clustering with classes: NMI, ARI, Fowlkes-Mallows, ACC.

All four take class labels and cluster ids, integers of any values, and are
computed in float64 from the table of counts.
"""

import math

import numpy as np
from numpy.typing import ArrayLike


def contingency(labels: ArrayLike, clusters: ArrayLike) -> np.ndarray:
    """Table of counts of (class, cluster).

    Args:
        labels (array-like): (N,) integer class labels.
        clusters (array-like): (N,) integer cluster ids.

    Returns:
        np.ndarray: int64 (classes present, clusters present), ids ascending.

    Raises:
        ValueError: The two differ in length, are empty or not integers.
    """
    labels, clusters = np.asarray(labels), np.asarray(clusters)
    if labels.ndim != 1 or labels.shape != clusters.shape or not labels.size:
        raise ValueError(
            'Labels and cluster ids must be two non-empty vectors of one '
            f'length, got shapes {labels.shape} and {clusters.shape}.'
        )
    if labels.dtype.kind not in 'iub' or clusters.dtype.kind not in 'iub':
        raise ValueError(
            'Labels and cluster ids must be integers, got '
            f'{labels.dtype} and {clusters.dtype}.'
        )
    classes, rows = np.unique(labels, return_inverse=True)
    ids, columns = np.unique(clusters, return_inverse=True)
    flat = rows.reshape(-1) * len(ids) + columns.reshape(-1)
    counts = np.bincount(flat, minlength=len(classes) * len(ids))
    return counts.reshape(len(classes), len(ids))


def normalized_mutual_information(
    labels: ArrayLike, clusters: ArrayLike
) -> float:
    """Mutual information over the arithmetic mean of the two entropies.

    Returns:
        float: in [0, 1]; 1 where both sides have a single group.

    Source: iBOT official code's choice (arithmetic mean, natural log).
    """
    counts = contingency(labels, clusters)
    if counts.shape == (1, 1):
        return 1.0
    joint = counts / counts.sum()
    rows, columns = joint.sum(1), joint.sum(0)
    present = joint > 0
    expected = np.outer(rows, columns)[present]
    observed = joint[present]
    information = float((observed * np.log(observed / expected)).sum())
    mean_entropy = (_entropy(rows) + _entropy(columns)) / 2
    return min(max(information / mean_entropy, 0.0), 1.0)


def adjusted_rand_index(labels: ArrayLike, clusters: ArrayLike) -> float:
    """Rand index corrected for chance.

    Returns:
        float: 1 for equal partitions, about 0 for independent ones, at least
        -0.5.

    Source: Hubert & Arabie, "Comparing partitions", 1985, eq. 5.
    """
    both, same_class, same_cluster, pairs = _pairs(labels, clusters)
    if pairs == 0:
        return 1.0
    expected = same_class * same_cluster / pairs
    largest = (same_class + same_cluster) / 2
    if largest == expected:
        return 1.0
    return (both - expected) / (largest - expected)


def fowlkes_mallows_index(labels: ArrayLike, clusters: ArrayLike) -> float:
    """Geometric mean of the precision and the recall over pairs of samples.

    Returns:
        float: in [0, 1]; 0 where no pair shares class and cluster.

    Source: Fowlkes & Mallows, 1983.
    """
    both, same_class, same_cluster, _ = _pairs(labels, clusters)
    if both == 0:
        return 0.0
    return math.sqrt(both / same_class) * math.sqrt(both / same_cluster)


def clustering_accuracy(labels: ArrayLike, clusters: ArrayLike) -> float:
    """Share of samples right under the best one-to-one assignment.

    Each cluster is given to at most one class and the reverse (Hungarian
    method); samples of clusters left over count as wrong, so with more
    clusters than classes the figure is a lower bound of the purity.

    Returns:
        float: in [0, 1].
    """
    from scipy.optimize import linear_sum_assignment

    counts = contingency(labels, clusters)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / counts.sum())


def cluster_metrics(
    labels: ArrayLike, clusters: ArrayLike, accuracy: bool = True
) -> dict[str, float]:
    """The four metrics as a dict: nmi, ari, fmi and (by option) acc.

    Args:
        labels (array-like): (N,) integer class labels.
        clusters (array-like): (N,) integer cluster ids.
        accuracy (bool): Include ``acc``; it grows with the cube of the
            number of groups and only means much with as many clusters as
            classes.
    """
    metrics = {
        'nmi': normalized_mutual_information(labels, clusters),
        'ari': adjusted_rand_index(labels, clusters),
        'fmi': fowlkes_mallows_index(labels, clusters),
    }
    if accuracy:
        metrics['acc'] = clustering_accuracy(labels, clusters)
    return metrics


def _entropy(share: np.ndarray) -> float:
    share = share[share > 0]
    return float(-(share * np.log(share)).sum())


def _pairs(labels: ArrayLike, clusters: ArrayLike) -> tuple[int, ...]:
    """Pairs that share both, the class, the cluster, and all pairs.

    Python integers: products of them exceed 64 bits from about 80,000
    samples.
    """
    counts = contingency(labels, clusters)

    def pairs(numbers: np.ndarray) -> int:
        return int((numbers * (numbers - 1) // 2).sum())

    return (
        pairs(counts),
        pairs(counts.sum(1)),
        pairs(counts.sum(0)),
        pairs(counts.sum()),
    )
