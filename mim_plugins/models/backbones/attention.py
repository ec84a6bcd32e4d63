"""Attention kernels behind one signature, and the choice between them."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def attention_weights(query: Tensor, key: Tensor) -> Tensor:
    """Softmax attention of every query over all keys.

    Args:
        query (Tensor): (B, heads, N, d).
        key (Tensor): (B, heads, N, d).

    Returns:
        Tensor: (B, heads, N, N), rows sum to one.
    """
    query = query * query.shape[-1] ** -0.5
    return (query @ key.transpose(-2, -1)).softmax(dim=-1)


def explicit_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0
) -> Tensor:
    """Attention as two matrix products with a softmax between them.

    Args:
        query, key, value (Tensor): (B, heads, N, d).
        dropout_p (float): probability of dropping an attention weight.

    Returns:
        Tensor: (B, heads, N, d).
    """
    weights = attention_weights(query, key)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return weights @ value


def fastest_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0
) -> Tensor:
    """The kernel that is fastest for the device and precision at hand.

    On a CPU in bfloat16 that is :func:`explicit_attention`: the fused kernel
    takes two to five times as long, forward and backward.  Elsewhere it is
    ``scaled_dot_product_attention``.
    """
    if query.device.type == 'cpu' and query.dtype == torch.bfloat16:
        return explicit_attention(query, key, value, dropout_p)
    return F.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout_p
    )


def select_attention(name: str) -> Callable:
    """Look an attention kernel up by its name in a config.

    Args:
        name (str): ``'auto'``, ``'sdpa'`` or ``'explicit'``.

    Raises:
        ValueError: if the name is none of these.
    """
    kernels = {
        'auto': fastest_attention,
        'sdpa': F.scaled_dot_product_attention,
        'explicit': explicit_attention,
    }
    if name not in kernels:
        raise ValueError(
            f'attention={name!r} is not known; choose one of '
            f'{", ".join(map(repr, kernels))}.'
        )
    return kernels[name]
