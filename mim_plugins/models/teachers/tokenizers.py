"""Tokenizers: frozen teachers that give each patch a token or a distribution.

They are called with normalised pictures ``(B, 3, H, W)``, the grid ``(h, w)``
of the student's patches and the flat positions ``(M,)`` in ``(B * h * w)`` of
those that are asked for; ``num_tokens`` is the size of their vocabulary.

Source: iBOT, Table 4 (tokenizer ablation), and BEiT for DALL-E's.
"""

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from mmpretrain.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from mim_plugins.checkpoints import CheckpointMismatch, load_file

from ..selfsup.outputs import Tokens
from .frozen import FrozenNetwork


def _load_strictly(network: nn.Module, state: dict, path: str) -> None:
    own = network.state_dict()
    missing = sorted(set(own) - set(state))
    extra = sorted(set(state) - set(own))
    shapes = sorted(
        k for k in set(own) & set(state) if own[k].shape != state[k].shape
    )
    if missing or extra or shapes:
        raise CheckpointMismatch(
            f'{path} does not fit the tokenizer of the config. Missing: '
            f'{missing[:5]}; unknown: {extra[:5]}; of another shape: '
            f'{shapes[:5]}. Nothing was loaded.'
        )
    network.load_state_dict(state)


def _require(checkpoint: str | None, what: str) -> str:
    if checkpoint is None:
        raise ValueError(
            f'{what} is a trained tokenizer: name its file with '
            'model.objectives.<name>.tokenizer.checkpoint=PATH.'
        )
    return checkpoint


@MODELS.register_module()
class DALLETokenizer(BaseModule):
    """Token ids of the discrete VAE of DALL-E, as BEiT uses it.

    The picture is resized so that one patch of the student becomes one token
    (8 pixels).

    Args:
        checkpoint (str): state dict of mmpretrain's ``DALL-E`` encoder.
        encoder (dict, optional): its config.
        mean, std: the student's normalisation (0 to 255), which is undone.
    """

    stride = 8

    def __init__(
        self,
        checkpoint: str | None = None,
        encoder: dict | None = None,
        mean: Sequence[float] = (123.675, 116.28, 103.53),
        std: Sequence[float] = (58.395, 57.12, 57.375),
    ):
        super().__init__()
        network = MODELS.build({'type': 'DALL-E', **(encoder or {})})
        path = _require(checkpoint, 'DALLETokenizer')
        state = load_file(path)
        _load_strictly(network, state.get('state_dict', state), path)
        self.encoder = FrozenNetwork(network)
        self.num_tokens = network.blocks[-1].conv.w.shape[0]
        scale = torch.tensor(std).view(-1, 1, 1) / 255
        shift = torch.tensor(mean).view(-1, 1, 1) / 255
        self.register_buffer('scale', scale, persistent=False)
        self.register_buffer('shift', shift, persistent=False)

    @torch.no_grad()
    def forward(
        self, views: Tensor, grid: tuple[int, int], index: Tensor
    ) -> Tensor:
        """Ids ``(M,)`` of the patches at ``index``."""
        size = [n * self.stride for n in grid]
        x = F.interpolate(
            (views * self.scale + self.shift).clamp(0, 1),
            size,
            mode='bilinear',
            antialias=True,
        )
        # The encoder chooses its precision itself: ids are the same whatever
        # the student trains in. It keeps its inputs 0.1 away from 0 and 1.
        with torch.autocast(x.device.type, enabled=False):
            logits = self.encoder.network(0.8 * x + 0.1)
        return logits.argmax(1).flatten().index_select(0, index)


@MODELS.register_module()
class FrozenTokenizer(BaseModule):
    """Token distributions of a trained backbone and head, e.g. of DINO.

    Args:
        backbone (dict): config of the backbone.
        head (dict): config of its head, an ``IBOTHead``.
        checkpoint (str): a pre-training checkpoint of this package, of which
            the teacher is taken.
        temperature (float): of the distributions.
    """

    def __init__(
        self,
        backbone: dict,
        head: dict,
        checkpoint: str | None = None,
        temperature: float = 0.04,
    ):
        super().__init__()
        network = nn.ModuleDict()
        network['backbone'] = MODELS.build(
            dict(backbone, mask_token=False, drop_path_rate=0.0)
        )
        head = dict(head)
        head.setdefault('in_dim', network['backbone'].embed_dims)
        network['head'] = MODELS.build(head)
        path = _require(checkpoint, 'FrozenTokenizer')
        state = load_file(path)
        state = state.get('state_dict', state)
        teacher = {
            k.removeprefix('teacher.'): v
            for k, v in state.items()
            if k.startswith('teacher.')
        }
        _load_strictly(network, teacher, path)
        self.teacher = FrozenNetwork(network)
        self.num_tokens = network['head'].patch_out_dim
        self.temperature = temperature

    @torch.no_grad()
    def forward(
        self, views: Tensor, grid: tuple[int, int], index: Tensor
    ) -> Tensor:
        """Distributions ``(M, K)`` of the patches at ``index``."""
        network = self.teacher.network
        tokens = Tokens(network['backbone'].forward_tokens(views), 1, grid)
        logits = network['head'].forward_patch(tokens.patches_at(index))
        if logits.dtype != torch.float64:
            logits = logits.float()
        return (logits / self.temperature).softmax(-1)
