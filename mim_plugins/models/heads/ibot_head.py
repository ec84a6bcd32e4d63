"""Projection head of iBOT for [CLS] and patch tokens."""

from mmengine.model import BaseModule
from mmpretrain.registry import MODELS
from torch import Tensor, nn
from torch.nn import functional as F

from .normalized_linear import NormalizedLinear
from .token_norm import TokenBatchNorm

SHARE_MODES = ('all', 'mlp', 'layers', 'none')


def _norm_layer(norm: str | None, dim: int) -> nn.Module | None:
    if norm is None:
        return None
    if norm == 'bn':
        return TokenBatchNorm(dim)
    if norm == 'ln':
        return nn.LayerNorm(dim, eps=1e-6)
    raise ValueError(f"norm='{norm}' is not known: use None, 'bn' or 'ln'.")


def build_mlp(
    in_dim: int,
    hidden_dim: int,
    out_dim: int,
    num_layers: int = 3,
    norm: str | None = None,
) -> nn.Sequential:
    """Linear layers with GELU (and a norm) between them.

    One norm module serves all hidden layers, as in the official code.
    """
    if num_layers < 1:
        raise ValueError(f'num_layers={num_layers}: at least one is needed.')
    widths = [in_dim] + [hidden_dim] * (num_layers - 1) + [out_dim]
    shared_norm = _norm_layer(norm, hidden_dim) if num_layers > 1 else None
    layers: list[nn.Module] = []
    for i in range(num_layers):
        layers.append(nn.Linear(widths[i], widths[i + 1]))
        if i < num_layers - 1:
            if shared_norm is not None:
                layers.append(shared_norm)
            layers.append(nn.GELU())
    return nn.Sequential(*layers)


@MODELS.register_module()
class IBOTHead(BaseModule):
    """MLP, l2-normalised bottleneck, and a layer of prototypes.

    Args:
        in_dim (int): D, the width of the tokens.
        out_dim (int): K, prototypes of the [CLS] token.
        patch_out_dim (int, optional): prototypes of the patch tokens; K when
            None.
        num_layers (int): layers of the MLP.
        hidden_dim (int): width of the hidden layers.
        bottleneck_dim (int): width of the normalised bottleneck.
        share (str): what [CLS] and patch tokens share. ``'all'``: the whole
            head (the paper's default); ``'mlp'``: the MLP, with a layer of
            prototypes each (the official code's default for the student);
            ``'layers'``: the first ``shared_layers`` layers of the MLP;
            ``'none'``: nothing.
        shared_layers (int): see ``share='layers'``.
        norm_last_layer (bool): whether the length of the prototypes is fixed
            at one. The published ViT-S/16 run learns it.
        norm (str, optional): ``'bn'`` or ``'ln'`` between the layers of the
            MLP.  One module serves all hidden layers, as in the official
            code. With ``'bn'`` the statistics are those of the tokens that
            pass in one call on all processes: [CLS] tokens and patch tokens
            apart, and of the student's patches the masked ones.

    Source: iBOT, Sec. 3.2 and Appendix E (heads); DINO for the head itself.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int = 8192,
        patch_out_dim: int | None = None,
        num_layers: int = 3,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        share: str = 'all',
        shared_layers: int = 2,
        norm_last_layer: bool = True,
        norm: str | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        patch_out_dim = patch_out_dim or out_dim
        self._check(share, out_dim, patch_out_dim, shared_layers, num_layers)
        self.share = share
        self.out_dim, self.patch_out_dim = out_dim, patch_out_dim

        def mlp() -> nn.Sequential:
            return build_mlp(
                in_dim, hidden_dim, bottleneck_dim, num_layers, norm
            )

        def prototypes(count: int) -> NormalizedLinear:
            return NormalizedLinear(
                bottleneck_dim, count, train_scale=not norm_last_layer
            )

        self.mlp = mlp()
        self.last_layer = prototypes(out_dim)
        if share != 'all':
            self.patch_last_layer = prototypes(patch_out_dim)
        if share == 'none':
            self.patch_mlp = mlp()
        elif share == 'layers':
            linear = [
                i for i, m in enumerate(self.mlp) if isinstance(m, nn.Linear)
            ]
            own_from = linear[shared_layers]
            self.patch_mlp = nn.Sequential(
                *self.mlp[:own_from], *mlp()[own_from:]
            )
        self._init_mlp()

    @staticmethod
    def _check(share, out_dim, patch_out_dim, shared_layers, num_layers):
        if share not in SHARE_MODES:
            raise ValueError(f"share='{share}' is not one of {SHARE_MODES}.")
        if share == 'all' and patch_out_dim != out_dim:
            raise ValueError(
                f'share="all" means one layer of prototypes, but out_dim is '
                f'{out_dim} and patch_out_dim {patch_out_dim}. Make them '
                'equal, or set share="mlp".'
            )
        if share == 'layers' and not 0 < shared_layers < num_layers:
            raise ValueError(
                f'shared_layers={shared_layers} must lie between 1 and '
                f'num_layers - 1 = {num_layers - 1}.'
            )

    def _init_mlp(self) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and 'mlp' in name:
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def init_weights(self) -> None:
        """Draw all weights again (``init_cfg`` has the last word)."""
        self._init_mlp()
        for module in self.modules():
            if isinstance(module, NormalizedLinear):
                module.reset_parameters()
        super().init_weights()

    def project_cls(self, x: Tensor) -> Tensor:
        """[CLS] tokens ``(..., D)`` to unit bottleneck vectors."""
        return F.normalize(self.mlp(x), dim=-1)

    def project_patch(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Patch tokens ``(..., D)`` to unit bottleneck vectors.

        Args:
            x (Tensor): ``(..., D)``.
            valid (Tensor, optional): bool ``(...)``; False for padding,
                which then counts in no statistics.
        """
        for layer in getattr(self, 'patch_mlp', self.mlp):
            if isinstance(layer, TokenBatchNorm):
                x = layer(x, valid)
            else:
                x = layer(x)
        return F.normalize(x, dim=-1)

    @property
    def patch_prototypes(self) -> NormalizedLinear:
        """The layer of prototypes that patch tokens go through."""
        return getattr(self, 'patch_last_layer', self.last_layer)

    def forward_cls(self, x: Tensor) -> Tensor:
        """[CLS] tokens ``(..., D)`` to logits ``(..., K)``."""
        return self.last_layer(self.project_cls(x))

    def forward_patch(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Patch tokens ``(..., D)`` to logits ``(..., KP)``.

        Args:
            x, valid: as in :meth:`project_patch`.
        """
        return self.patch_prototypes(self.project_patch(x, valid))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits of all tokens.

        Args:
            x (Tensor): ``(B, 1 + N, D)`` with [CLS] first, or ``(B, D)`` of
                [CLS] tokens only.

        Returns:
            ``(B, K)`` and ``(B, N, KP)``, or ``(B, K)`` for [CLS] only.
        """
        if x.dim() == 2:
            return self.forward_cls(x)
        return self.forward_cls(x[:, 0]), self.forward_patch(x[:, 1:])
