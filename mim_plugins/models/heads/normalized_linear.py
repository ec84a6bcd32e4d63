"""The prototype layer of DINO and iBOT: a linear layer of unit rows."""

import math

import torch
from torch import Tensor, nn


class NormalizedLinear(nn.Module):
    """Linear layer without bias whose rows are ``scale * w / |w|``.

    The weight is a plain tensor that is normalised in the forward pass, so
    that the module can be copied, averaged and sharded like any other.

    Args:
        in_dim (int): D, the width of the input.
        out_dim (int): K, the number of prototypes.
        train_scale (bool): whether the length of each row is learned. It is
            fixed at one otherwise.

    Source: last layer of the heads of DINO and iBOT (``weight_v`` is
    :attr:`weight`, ``weight_g`` is :attr:`scale`).
    """

    def __init__(self, in_dim: int, out_dim: int, train_scale: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim))
        self.scale = nn.Parameter(
            torch.ones(out_dim, 1), requires_grad=train_scale
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The default initialisation of :class:`torch.nn.Linear`."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.ones_(self.scale)

    def rows(self) -> Tensor:
        """The effective weight, ``(K, D)``."""
        norm = self.weight.norm(dim=1, keepdim=True)
        return self.weight * (self.scale / norm)

    def forward(self, x: Tensor) -> Tensor:
        """``(..., D)`` to ``(..., K)``."""
        return nn.functional.linear(x, self.rows())
