"""The student of masked pre-training: a vision transformer that masks."""

from collections.abc import Sequence

import torch
import torch.nn as nn
from mmcv.cnn.bricks.drop import DropPath
from mmengine.model import PretrainedInit
from mmengine.registry import WEIGHT_INITIALIZERS
from mmpretrain.models.backbones import VisionTransformer
from mmpretrain.registry import MODELS
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mim_plugins.checkpoints import load_pretrained

from .attention import attention_weights, select_attention
from .block import run_block
from .position_embedding import POSITION_MODES, resize_position_embedding


@MODELS.register_module()
class MaskedVisionTransformer(VisionTransformer):
    """mmpretrain's ViT with a mask token and access to all tokens.

    Modules and parameter names are mmpretrain's; the one new parameter is
    ``mask_token`` (1, 1, D).  Without it every key fits
    ``mmpretrain.VisionTransformer``.

    Args:
        arch (str | dict): mmpretrain's names (``'deit-tiny'``,
            ``'deit-small'``, ``'base'``, ``'large'`` ...; its ``'small'`` is
            768 wide) or a dict with ``embed_dims``, ``num_layers``,
            ``num_heads``, ``feedforward_channels``.
        img_size (int | tuple): native image size, an int or (h, w); other
            sizes work too, their position embedding is interpolated.
        patch_size (int | tuple): an int or (h, w).
        mask_token (bool): whether there is a mask token.  A teacher needs
            none.
        pos_interpolation (str): ``'size'``, ``'ibot'`` or ``'msn'``, see
            :func:`resize_position_embedding`.
        with_cp (bool): recompute each block's activations in the backward
            pass instead of keeping them.
        attention (str): ``'auto'`` (fastest for device and precision),
            ``'sdpa'`` or ``'explicit'``.
        out_indices (int | Sequence[int]): blocks whose output ``forward``
            returns; negative ones count from the end.
        **kwargs: the other arguments of ``mmpretrain.VisionTransformer``.

    Raises:
        ValueError: for an unknown option, an image size that the patches do
            not tile, or heads that do not divide the width.

    As everywhere in mmengine, weights get their starting values in
    ``init_weights()``: truncated normal of deviation 0.02 for linear
    weights, [CLS] and position embedding, zero for biases and mask token.
    Then ``init_cfg=dict(type='Pretrained', checkpoint=...)`` loads a file of
    any kind that :func:`load_pretrained` reads, without running what is in it;
    of a file with two networks the teacher's, or the student's with
    ``prefix='student'``.

    Source: iBOT, section 3.1; start values are the official code's.
    """

    def __init__(
        self,
        arch: str | dict = 'base',
        img_size: int | tuple = 224,
        patch_size: int | tuple = 16,
        mask_token: bool = True,
        pos_interpolation: str = 'size',
        with_cp: bool = False,
        attention: str = 'auto',
        out_indices: int | Sequence[int] = -1,
        **kwargs,
    ):
        if pos_interpolation not in POSITION_MODES:
            raise ValueError(
                f'pos_interpolation={pos_interpolation!r} is not known; '
                f'choose one of {", ".join(map(repr, POSITION_MODES))}.'
            )
        kernel = select_attention(attention)
        if not isinstance(out_indices, int):
            # mmpretrain writes into the list that it is given
            out_indices = list(out_indices)
        super().__init__(
            arch=arch,
            img_size=img_size,
            patch_size=patch_size,
            out_indices=out_indices,
            **kwargs,
        )
        heads = self.arch_settings['num_heads']
        if self.embed_dims % heads:
            raise ValueError(
                f'{heads} heads do not divide the width {self.embed_dims} '
                f'of arch={arch!r}.'
            )
        self._check_size(self.img_size)
        self.arch = arch if isinstance(arch, str) else None
        self.pos_interpolation = pos_interpolation
        self.with_cp = with_cp
        self.position_embedding(self.patch_resolution)
        for layer in self.layers:
            layer.attn.scaled_dot_product_attention = kernel
        for module in self.modules():
            if isinstance(module, DropPath):
                # mmpretrain leaves numpy numbers, which torch.compile breaks
                # its graph at
                module.drop_prob = float(module.drop_prob)
        if mask_token:
            self.mask_token = nn.Parameter(torch.zeros(1, 1, self.embed_dims))
        else:
            self.register_parameter('mask_token', None)

    def init_weights(self) -> None:
        """Draw the starting values, then load the file of ``init_cfg``.

        Raises:
            CheckpointMismatch: the file's backbone is of another size.
            CheckpointError: the file is missing, damaged, could run code, or
                holds no such backbone.
        """
        files = self._init_others()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        if self.mask_token is not None:
            nn.init.zeros_(self.mask_token)
        for file in files:
            load_pretrained(self, file.checkpoint, file.prefix)

    def _init_others(self) -> list[PretrainedInit]:
        """mmengine's part but for the files, whose code it would run."""
        init_cfg = self.init_cfg
        parts = [init_cfg] if isinstance(init_cfg, dict) else init_cfg or []
        kinds = ('Pretrained', PretrainedInit)
        files = [part for part in parts if part['type'] in kinds]
        self.init_cfg = [part for part in parts if part not in files]
        try:
            super().init_weights()
        finally:
            self.init_cfg = init_cfg
        return [WEIGHT_INITIALIZERS.build(part) for part in files]

    def train(self, mode: bool = True) -> 'MaskedVisionTransformer':
        """As in torch; frozen stages stay in evaluation mode."""
        super().train(mode)
        if mode and self.frozen_stages > 0:
            self._freeze_stages()
        return self

    def grid(self, x: Tensor) -> tuple[int, int]:
        """Rows and columns of patches in images (B, C, H, W).

        Raises:
            ValueError: if the patches do not tile the images.
        """
        self._check_size(x.shape[-2:])
        conv = self.patch_embed.projection
        return tuple(
            (size - kernel) // stride + 1
            for size, kernel, stride in zip(
                x.shape[-2:], conv.kernel_size, conv.stride
            )
        )

    def position_embedding(self, grid: tuple[int, int]) -> Tensor:
        """Position embedding (1, 1 + h * w, D) of a grid of patches."""
        return resize_position_embedding(
            self.pos_embed,
            self.patch_resolution,
            grid,
            mode=self.pos_interpolation,
            num_extra_tokens=self.num_extra_tokens,
            interpolation=self.interpolate_mode,
        )

    def embed(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Tokens that enter the first block.

        Args:
            x (Tensor): (B, C, H, W), normalised images.
            mask (Tensor, optional): bool (B, N), row-major; True where the
                patch embedding is replaced by the mask token.  The position
                embedding is added afterwards, to masked tokens as well.

        Returns:
            Tensor: (B, 1 + N, D).
        """
        grid = self.grid(x)
        tokens, _ = self.patch_embed(x)
        if mask is not None:
            self._check_mask(mask, tokens, grid)
            token = self.mask_token.to(tokens.dtype)
            tokens = torch.where(mask.unsqueeze(-1), token, tokens)
        if self.cls_token is not None:
            cls_token = self.cls_token.expand(len(tokens), -1, -1)
            tokens = torch.cat((cls_token.to(tokens.dtype), tokens), dim=1)
        tokens = tokens + self.position_embedding(grid)
        return self.pre_norm(self.drop_after_pos(tokens))

    def encode(
        self,
        tokens: Tensor,
        indices: Sequence[int],
        rows: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> list[Tensor]:
        """Run the blocks; outputs of those asked for, without final norm.

        Args:
            tokens (Tensor): (B, 1 + N, D), from :meth:`embed`.
            indices (Sequence[int]): blocks, counted from 0.  Those after the
                last one asked for are not run.
            rows (Tensor, optional): (R,), positions in (B * (1 + N)); the
                last block is run for these only.
            scales (Tensor, optional): as of :meth:`forward_tokens`.

        Returns:
            list[Tensor]: (B, 1 + N, D) each, in the order of the blocks;
            (R, D) of the last block with ``rows``.
        """
        outputs = []
        for i, layer in enumerate(self.layers):
            if i > max(indices, default=-1):
                break
            tokens = self._run_layer(
                layer,
                tokens,
                rows if i == self.num_layers - 1 else None,
                None if scales is None else scales[i],
            )
            if i in indices:
                outputs.append(tokens)
        return outputs

    def normalise(self, tokens: Tensor) -> Tensor:
        """Final norm (identity with ``final_norm=False``)."""
        return self.ln1(tokens) if self.final_norm else tokens

    def forward_tokens(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        index: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> Tensor:
        """Tokens after the final norm: all of them, or those asked for.

        Args:
            x (Tensor): (B, C, H, W), normalised images.
            mask (Tensor, optional): bool (B, N), see :meth:`embed`.
            index (Tensor, optional): (M,), flat positions of patches in
                (B * N).  The last block is then run for these and [CLS].
            scales (Tensor, optional): (layers, 2, B), drop path, of
                :func:`draw_drop_path`.

        Returns:
            Tensor: (B, 1 + N, D), [CLS] first, patches row-major; with
            ``index`` (B + M, D), all [CLS] first.

        Raises:
            ValueError: if the patches do not tile the images, the mask does
                not fit them, or there is no mask token.
        """
        tokens = self.embed(x, mask)
        rows = None if index is None else self._rows(tokens, index)
        last = self.num_layers - 1
        return self.normalise(self.encode(tokens, (last,), rows, scales)[0])

    def _rows(self, tokens: Tensor, index: Tensor) -> Tensor:
        """Rows of all [CLS] tokens and of patches, in (B * (1 + N))."""
        batch, count, _ = tokens.shape
        cls = torch.arange(batch, device=tokens.device) * count
        patches = count - 1
        return torch.cat([cls, index + index // patches + 1])

    def forward(self, x: Tensor) -> tuple:
        """mmpretrain's contract: one output per block of ``out_indices``.

        Each is formatted by ``out_type``; only the last block's output has
        passed the final norm.
        """
        indices = sorted(i for i in self.out_indices if i < self.num_layers)
        outputs = self.encode(self.embed(x), indices)
        grid = self.grid(x)
        return tuple(
            self._format_output(
                self.normalise(out) if i == self.num_layers - 1 else out, grid
            )
            for i, out in zip(indices, outputs)
        )

    def intermediate_tokens(
        self, x: Tensor, n: int = 1, norm: bool = True
    ) -> list[Tensor]:
        """Tokens of the last ``n`` blocks, the last block at the end.

        Args:
            x (Tensor): (B, C, H, W).
            n (int): number of blocks, 1 to the depth.
            norm (bool): whether each passes the final norm.

        Returns:
            list[Tensor]: n tensors (B, 1 + N, D).
        """
        if not 1 <= n <= self.num_layers:
            raise ValueError(
                f'n={n} blocks were asked for; this backbone has '
                f'{self.num_layers}.'
            )
        wanted = range(self.num_layers - n, self.num_layers)
        outputs = self.encode(self.embed(x), wanted)
        return [self.normalise(o) for o in outputs] if norm else outputs

    def last_attention(self, x: Tensor) -> Tensor:
        """Attention of the last block, (B, heads, 1 + N, 1 + N)."""
        tokens = self.embed(x)
        *before, last = self.layers
        for layer in before:
            tokens = self._run_layer(layer, tokens)
        qkv = last.attn.qkv(last.ln1(tokens))
        qkv = qkv.unflatten(-1, (3, last.attn.num_heads, -1))
        query, key, _ = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return attention_weights(query, key)

    def get_layer_depth(self, param_name: str, prefix: str = ''):
        """mmpretrain's layer depth, with the mask token in the stem."""
        if param_name == f'{prefix}mask_token':
            param_name = f'{prefix}cls_token'
        return super().get_layer_depth(param_name, prefix)

    def _run_layer(
        self,
        layer: nn.Module,
        tokens: Tensor,
        rows: Tensor | None = None,
        scales: Tensor | None = None,
    ) -> Tensor:
        if self.with_cp and tokens.requires_grad:
            args = layer, tokens, rows, scales, False
            return checkpoint(run_block, *args, use_reentrant=False)
        return run_block(layer, tokens, rows, scales)

    def _prepare_pos_embed(self, state_dict, prefix, *args, **kwargs):
        """Load hook: fit a table of another size to the native grid."""
        name = f'{prefix}pos_embed'
        table = state_dict.get(name)
        if table is None or table.shape == self.pos_embed.shape:
            return
        if not self.with_cls_token:
            return super()._prepare_pos_embed(state_dict, prefix)
        side = round((table.shape[1] - 1) ** 0.5)
        if side * side != table.shape[1] - 1:
            # left to load_state_dict, which names the two shapes
            return
        state_dict[name] = resize_position_embedding(
            table,
            (side, side),
            self.patch_resolution,
            mode=self.pos_interpolation,
            interpolation=self.interpolate_mode,
        )

    def _check_size(self, size: Sequence[int]) -> None:
        conv = self.patch_embed.projection
        for name, pixels, kernel, stride in zip(
            ('height', 'width'), size, conv.kernel_size, conv.stride
        ):
            if pixels < kernel or (pixels - kernel) % stride:
                raise ValueError(
                    f'Images of {size[0]}x{size[1]} pixels: the {name} '
                    f'{pixels} is not divisible by the patch size {kernel}. '
                    f'Resize or crop them to a multiple of it.'
                )

    def _check_mask(self, mask: Tensor, tokens: Tensor, grid) -> None:
        if self.mask_token is None:
            raise ValueError(
                'A mask was given to a backbone without mask token; build '
                'it with mask_token=True.'
            )
        if mask.dtype != torch.bool or mask.shape != tokens.shape[:2]:
            raise ValueError(
                f'The mask must be a bool tensor of shape '
                f'{tuple(tokens.shape[:2])} (images, {grid[0]}x{grid[1]} '
                f'patches), not {mask.dtype} of {tuple(mask.shape)}.'
            )
