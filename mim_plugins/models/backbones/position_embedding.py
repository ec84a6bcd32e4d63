"""Absolute position embeddings at another grid than the native one."""

import torch
import torch.nn.functional as F
from torch import Tensor

POSITION_MODES = ('size', 'ibot', 'msn')


def resize_position_embedding(
    pos_embed: Tensor,
    native: tuple[int, int],
    grid: tuple[int, int],
    mode: str = 'size',
    num_extra_tokens: int = 1,
    interpolation: str = 'bicubic',
) -> Tensor:
    """Fit a position embedding to a grid of patches.

    The entries of extra tokens ([CLS]) never change; those of the patches
    are interpolated, row-major, unless the grid is the native one.

    Args:
        pos_embed (Tensor): (1, extra + h0 * w0, D).
        native (tuple[int, int]): (h0, w0), the grid that it was made for.
        grid (tuple[int, int]): (h, w), the grid wanted.
        mode (str): where the samples are taken.

            - ``'size'``: resized to the size (h, w), as mmpretrain does.
            - ``'ibot'``: by the scale factors (h + 0.1) / h0 and
              (w + 0.1) / w0, which shifts every sample a little.
            - ``'msn'``: by size, but unchanged whenever the NUMBER of
              patches is the native one; square grids only.
        num_extra_tokens (int): tokens before the patches.
        interpolation (str): mode of ``torch.nn.functional.interpolate``.

    Returns:
        Tensor: (1, extra + h * w, D), in the type of ``pos_embed``.

    Raises:
        ValueError: for an unknown mode, a table that does not fit
            ``native``, or a grid that ``'msn'`` is not defined for.

    Source: official codes of iBOT and MSN; mmpretrain for ``'size'``.
    """
    _check(pos_embed, native, grid, mode, num_extra_tokens)
    if tuple(grid) == tuple(native):
        return pos_embed
    if mode == 'msn' and grid[0] * grid[1] == native[0] * native[1]:
        return pos_embed

    extra = pos_embed[:, :num_extra_tokens]
    patches = pos_embed[:, num_extra_tokens:]
    patches = patches.unflatten(1, native).permute(0, 3, 1, 2)
    if patches.dtype in (torch.float16, torch.bfloat16):
        patches = patches.float()
    if mode == 'ibot':
        factors = tuple((g + 0.1) / n for g, n in zip(grid, native))
        target = {'scale_factor': factors}
    else:
        target = {'size': tuple(grid)}
    if interpolation not in ('nearest', 'nearest-exact', 'area'):
        target['align_corners'] = False
    patches = F.interpolate(patches, mode=interpolation, **target)
    patches = patches.flatten(2).transpose(1, 2).to(pos_embed.dtype)
    return torch.cat((extra, patches), dim=1)


def _check(pos_embed, native, grid, mode, num_extra_tokens):
    if mode not in POSITION_MODES:
        raise ValueError(
            f'pos_interpolation={mode!r} is not known; choose one of '
            f'{", ".join(map(repr, POSITION_MODES))}.'
        )
    expected = num_extra_tokens + native[0] * native[1]
    if pos_embed.ndim != 3 or pos_embed.shape[1] != expected:
        raise ValueError(
            f'A position embedding of shape {tuple(pos_embed.shape)} does '
            f'not fit the native grid {native[0]}x{native[1]}, which needs '
            f'(1, {expected}, D).'
        )
    if mode != 'msn':
        return
    if native[0] != native[1]:
        raise ValueError(
            f"pos_interpolation='msn' needs a square native grid, not "
            f"{native[0]}x{native[1]}; use 'size' or 'ibot'."
        )
    if grid[0] != grid[1] and grid[0] * grid[1] != native[0] * native[1]:
        raise ValueError(
            f"pos_interpolation='msn' is defined for square grids only, not "
            f"{grid[0]}x{grid[1]}; use 'size' or 'ibot'."
        )
