"""Drop path that is the same for any number of processes."""

import torch
from torch import Tensor, nn

from ..randomness import IterationRandomness, to_device


def draw_drop_path(
    backbone: nn.Module,
    views: Tensor,
    num_views: int,
    randomness: IterationRandomness,
) -> Tensor | None:
    """What the residual branches of one forward pass are multiplied by.

    Args:
        backbone (nn.Module): ``MaskedVisionTransformer``, whose blocks name
            the probabilities.
        views (Tensor): (V * B, C, H, W), crop-major; only its length and
            device are used.
        num_views (int): V.
        randomness (IterationRandomness): of the iteration.

    Returns:
        Tensor | None: (layers, 2, V * B), of attention and feed-forward, on
        the device: 0 where an image's branch is dropped, else 1 / (1 - p).
        None if nothing is dropped, or no iteration was started: the blocks
        then draw for themselves, as in mmpretrain.
    """
    probs = [
        [_drop_prob(layer.attn.out_drop), _drop_prob(layer.ffn.dropout_layer)]
        for layer in backbone.layers
    ]
    if not (randomness.started and any(map(any, probs))):
        return None
    drop = torch.tensor(probs, dtype=backbone.pos_embed.dtype)
    numbers = randomness.uniform(
        len(views) // num_views, num_views, *drop.shape
    )
    scales = (numbers >= drop) / (1 - drop)
    return to_device(scales.permute(2, 3, 1, 0).flatten(2), views.device)


def _drop_prob(module: nn.Module) -> float:
    """Of a DropPath; nothing is dropped in a frozen layer, or without one."""
    return getattr(module, 'drop_prob', 0.0) if module.training else 0.0
