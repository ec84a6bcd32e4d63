"""Teachers that never change, kept out of the checkpoint."""

from collections.abc import Callable

from torch import Tensor, nn


class FrozenNetwork(nn.Module):
    """Holds a network that follows ``.to()`` but is no child module.

    So it has no parameters for the optimizer or the process group, and no
    place in a checkpoint: the config names the file that it came from.

    Args:
        network (nn.Module): set to evaluation, without gradients.
    """

    def __init__(self, network: nn.Module):
        super().__init__()
        network.eval().requires_grad_(False)
        self._hidden = [network]

    @property
    def network(self) -> nn.Module:
        return self._hidden[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        self.network._apply(fn)
        return super()._apply(fn, recurse)
