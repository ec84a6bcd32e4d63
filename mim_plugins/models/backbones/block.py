"""A transformer block over mmpretrain's modules, with less work and memory.

What the backward pass can quickly make again (outputs of layer norms and of
the activation) is not kept for it, and the last block can be run for those
tokens only whose output is wanted.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from mmcv.cnn.bricks.transformer import FFN
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

# What a branch is multiplied by, (B,), or the module that draws it.
Drop = Tensor | nn.Module


def run_block(
    layer: nn.Module,
    tokens: Tensor,
    rows: Tensor | None = None,
    scales: Tensor | None = None,
    recompute: bool = True,
) -> Tensor:
    """Self-attention and feed-forward, each with its residual.

    Args:
        layer (nn.Module): mmpretrain's ``TransformerEncoderLayer``.
        tokens (Tensor): ``(B, N, D)``.
        rows (Tensor, optional): ``(R,)``, positions in the flattened
            ``(B * N)`` whose output is wanted. All tokens are attended to.
        scales (Tensor, optional): ``(2, B)``, what attention and feed-forward
            of each image are multiplied by, see :func:`draw_drop_path`. The
            layer's own drop path acts when there are none.
        recompute (bool): make outputs of layer norms and of the activation
            again in the backward pass.

    Returns:
        Tensor: ``(B, N, D)``, or ``(R, D)`` with ``rows``.
    """
    recompute = (
        recompute
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )
    attn, ffn = layer.attn, layer.ffn
    drop_attention, drop_mlp = attn.out_drop, ffn.dropout_layer
    if scales is not None:
        drop_attention, drop_mlp = scales

    def attention(x: Tensor) -> Tensor:
        out = attend(attn, layer.ln1, x, recompute)
        out = out if rows is None else pick(out, rows)
        return attn.gamma1(attn.proj_drop(attn.proj(out)))

    def mlp(x: Tensor) -> Tensor:
        return feed_forward(ffn, layer.ln2, x, recompute)

    if rows is None:
        tokens = _residual(tokens, attention, drop_attention)
        return _residual(tokens, mlp, drop_mlp)
    batch, count, _ = tokens.shape
    image = rows // count
    out = _scale(attention(tokens), drop_attention, batch, image)
    tokens = pick(tokens, rows) + out
    return tokens + _scale(mlp(tokens), drop_mlp, batch, image)


def attend(
    attn: nn.Module, norm: nn.Module, tokens: Tensor, recompute: bool
) -> Tensor:
    """Attention of mmpretrain's module before its projection, (B, N, D)."""
    normed = norm(tokens)
    with _kept_as(normed, partial(norm, tokens), recompute):
        qkv = attn.qkv(normed)
    qkv = qkv.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    dropout = attn.attn_drop if attn.training else 0.0
    out = attn.scaled_dot_product_attention(*qkv, dropout_p=dropout)
    return out.transpose(1, 2).flatten(2)


def feed_forward(
    ffn: nn.Module, norm: nn.Module, tokens: Tensor, recompute: bool
) -> Tensor:
    """A feed-forward part without its residual; any (..., D)."""
    if not isinstance(ffn, FFN):  # mmpretrain's SwiGLU has no drop path
        return ffn(norm(tokens), identity=0)
    if len(ffn.layers) != 3:
        return ffn.gamma2(ffn.layers(norm(tokens)))
    (first, activation, dropout), second, last_dropout = ffn.layers
    normed = norm(tokens)
    with _kept_as(normed, partial(norm, tokens), recompute):
        hidden = first(normed)
    active = activation(hidden)
    with _kept_as(active, partial(activation, hidden), recompute):
        # without dropout, which hands its input on, `active` is what is kept
        out = second(dropout(active))
    return ffn.gamma2(last_dropout(out))


def pick(tokens: Tensor, rows: Tensor) -> Tensor:
    """Rows ``(R,)`` of the flattened ``(B * N)``: (R, D)."""
    return tokens.flatten(0, 1).index_select(0, rows)


def _kept_as(
    tensor: Tensor, recipe: Callable[[], Tensor], enabled: bool
) -> AbstractContextManager:
    """Let operations inside keep a recipe where they would keep a tensor."""
    # nullcontext: torch.compile of torch 2.4 knows no other context manager
    return _made_again(tensor, recipe) if enabled else nullcontext()


@contextmanager
def _made_again(
    tensor: Tensor, recipe: Callable[[], Tensor]
) -> Iterator[None]:
    # not the tensor itself, which autograd would keep with the function
    wanted = tensor.data_ptr(), tensor.numel(), tensor.dtype

    def pack(saved: Tensor) -> Tensor | tuple:
        if (saved.data_ptr(), saved.numel(), saved.dtype) != wanted:
            return saved
        return recipe, saved.shape, saved.stride()

    def unpack(kept: Tensor | tuple) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        make, shape, stride = kept
        return make().as_strided(shape, stride)

    with saved_tensors_hooks(pack, unpack):
        yield


def _residual(
    tokens: Tensor, branch: Callable[[Tensor], Tensor], drop: Drop
) -> Tensor:
    """``tokens`` and what a branch makes of the images that keep it."""
    kept = _kept(drop)
    if kept is None:
        return tokens + _scale(branch(tokens), drop, len(tokens))
    out = branch(tokens.index_select(0, kept))
    out = _per_image(out, drop.index_select(0, kept))
    return tokens.index_add(0, kept, out.to(tokens.dtype))


def _kept(drop: Drop) -> Tensor | None:
    """The images whose branch is computed; None for all of them.

    Only on a processor, where leaving work out saves its time; a GPU keeps
    its shapes (and would have to wait for the answer).
    """
    if not isinstance(drop, Tensor) or torch.compiler.is_compiling():
        return None
    if drop.device.type != 'cpu':
        return None
    kept = np.flatnonzero(drop.numpy())
    # without any, the parameters would be without gradients
    if len(kept) in (0, len(drop)):
        return None
    return torch.from_numpy(kept)


def _scale(
    out: Tensor, drop: Drop, batch: int, image: Tensor | None = None
) -> Tensor:
    """Drop path on a branch's output; ``image`` says whose each row is."""
    if not isinstance(drop, Tensor):
        if image is None or not drop.training:
            return drop(out)
        drop = drop(out.new_ones(batch, 1)).flatten()
    if image is not None:
        drop = drop.index_select(0, image)
    return _per_image(out, drop)


def _per_image(out: Tensor, scale: Tensor) -> Tensor:
    """The product, in the wider type: 16 bits would bias the scale."""
    return out * scale.view(-1, *[1] * (out.dim() - 1))
