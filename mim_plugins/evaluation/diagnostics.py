"""Statistics that tell a healthy run from a collapsed one, without labels."""

import math

import torch
from torch import Tensor


def effective_rank(features: Tensor) -> Tensor:
    """Number of directions that the features really use.

    The exponential of the entropy of the singular values, divided by their
    sum.  The matrix is taken as it is, not centred.

    Args:
        features (Tensor): (N, D).

    Returns:
        Tensor: scalar in [1, min(N, D)]; 0 for a matrix of zeros, NaN where
        the features hold NaN or infinity.  float32 (float64 for float64).

    Raises:
        ValueError: The features are not a matrix with at least one entry.

    Source: Roy & Vetterli, "The effective rank: a measure of effective
    dimensionality", EUSIPCO 2007, definition 1.
    """
    features = _matrix(features)
    if not torch.isfinite(features).all():
        return features.new_tensor(math.nan)
    values = torch.linalg.svdvals(features)
    total = values.sum()
    if total == 0:
        return total
    share = values / total
    return torch.exp(torch.special.entr(share).sum())


def feature_deviation(features: Tensor) -> Tensor:
    """Standard deviation of l2-normalised features over the batch.

    The mean over the channels of the deviation over the batch, times
    sqrt(D): 1 for directions spread evenly over the sphere, 0 when every
    image gets the same direction, whatever D.

    Args:
        features (Tensor): (N, D).

    Returns:
        Tensor: scalar in [0, 1] (biased deviation).

    Raises:
        ValueError: The features are not a matrix with at least one entry.

    Source: Chen & He, "Exploring simple siamese representation learning",
    section 4.1, where the healthy value reads 1 / sqrt(D).
    """
    features = _matrix(features)
    directions = torch.nn.functional.normalize(features, dim=1)
    deviation = directions.std(dim=0, correction=0).mean()
    return deviation * math.sqrt(features.shape[1])


@torch.no_grad()
def feature_statistics(features: Tensor) -> dict[str, Tensor]:
    """Effective rank and deviation of a batch of features.

    Args:
        features (Tensor): (N, D).

    Returns:
        dict: ``feature_rank`` (see :func:`effective_rank`) and
        ``feature_std`` (see :func:`feature_deviation`), scalars.
    """
    # Autocast would run the products of the decomposition in half precision.
    with torch.autocast(features.device.type, enabled=False):
        return {
            'feature_rank': effective_rank(features),
            'feature_std': feature_deviation(features),
        }


def collapse_signature(
    entropy: float,
    kl: float,
    num_prototypes: int,
    used: float | None = None,
    tolerance: float = 0.01,
) -> str | None:
    """Name of the collapse that one set of statistics shows, if any.

    Args:
        entropy (float): Mean entropy of the targets, in nats.
        kl (float): Mean Kullback-Leibler divergence from the targets to the
            student's output, in nats.
        num_prototypes (int): K, at least two.
        used (float, optional): Share of the prototypes that are the largest
            entry of at least one target, in [0, 1].
        tolerance (float): Share of ln K that counts as nothing.

    Returns:
        str or None: ``'uniform'`` where the targets are uniform and the
        student follows (the loss is then ln K), ``'single'`` where all
        targets name one prototype, else None.
    """
    limit = math.log(num_prototypes)
    margin = tolerance * limit
    if entropy > limit - margin and kl < margin:
        return 'uniform'
    one_used = used is not None and used * num_prototypes < 1.5
    if entropy < margin and one_used:
        return 'single'
    return None


def _matrix(features: Tensor) -> Tensor:
    if features.dim() != 2 or features.numel() == 0:
        raise ValueError(
            'Features must be a matrix (N, D) with at least one row and '
            f'column, got shape {tuple(features.shape)}.'
        )
    features = features.detach()
    return features if features.dtype == torch.float64 else features.float()
