import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models.utils import resize_pos_embed

from mim_plugins.models.backbones import (
    POSITION_MODES,
    resize_position_embedding,
)

sides = st.integers(1, 9)
grids = st.tuples(sides, sides)


def table_of(native, dim=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    count = 1 + native[0] * native[1]
    return torch.randn(1, count, dim, generator=generator, dtype=dtype)


@settings(max_examples=60, deadline=None)
@given(native=grids, grid=grids, mode=st.sampled_from(['size', 'ibot']))
def test_resized_table_has_the_grid_and_keeps_cls(native, grid, mode):
    table = table_of(native)
    resized = resize_position_embedding(table, native, grid, mode)
    assert resized.shape == (1, 1 + grid[0] * grid[1], 5)
    assert torch.equal(resized[:, 0], table[:, 0])


@settings(max_examples=30, deadline=None)
@given(native=sides, side=sides, mode=st.sampled_from(POSITION_MODES))
def test_constant_table_stays_constant(native, side, mode):
    table = torch.full((1, 1 + native * native, 2), 3.0, dtype=torch.float64)
    resized = resize_position_embedding(
        table, (native, native), (side, side), mode
    )
    torch.testing.assert_close(resized, torch.full_like(resized, 3.0))


@pytest.mark.parametrize('mode', POSITION_MODES)
def test_native_grid_is_left_alone(mode):
    table = table_of((4, 4))
    assert resize_position_embedding(table, (4, 4), (4, 4), mode) is table


def test_grid_with_the_native_count_differs_by_mode():
    """2x8 has the 16 patches of 4x4: MSN keeps the table, iBOT resizes."""
    table = table_of((4, 4))
    kept = resize_position_embedding(table, (4, 4), (2, 8), 'msn')
    assert kept is table
    resized = resize_position_embedding(table, (4, 4), (2, 8), 'ibot')
    assert not torch.allclose(resized, table)


def test_size_mode_is_mmpretrains():
    table = table_of((4, 6), dtype=torch.float32)
    ours = resize_position_embedding(table, (4, 6), (7, 3), 'size')
    theirs = resize_pos_embed(table, (4, 6), (7, 3), 'bicubic', 1)
    assert torch.equal(ours, theirs)


def test_modes_take_different_samples():
    table = table_of((4, 4))
    by_size, by_ibot = (
        resize_position_embedding(table, (4, 4), (6, 6), mode)
        for mode in ('size', 'ibot')
    )
    assert (by_size - by_ibot).abs().max() > 1e-3


def test_float64_is_not_rounded_to_float32():
    table = table_of((4, 4))
    exact = resize_position_embedding(table, (4, 4), (6, 6))
    assert exact.dtype == torch.float64
    single = resize_position_embedding(table.float(), (4, 4), (6, 6))
    assert 0 < (exact - single).abs().max() < 1e-5


@pytest.mark.parametrize('mode', POSITION_MODES)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_is_interpolated_in_float32(dtype, mode):
    table = table_of((4, 4), dtype=dtype)
    resized = resize_position_embedding(table, (4, 4), (6, 6), mode)
    exact = resize_position_embedding(table.float(), (4, 4), (6, 6), mode)
    assert torch.equal(resized, exact.to(dtype))


def test_autocast_changes_nothing():
    table = table_of((4, 4), dtype=torch.float32)
    plain = resize_position_embedding(table, (4, 4), (6, 6), 'ibot')
    with torch.autocast('cpu', dtype=torch.bfloat16):
        cast = resize_position_embedding(table, (4, 4), (6, 6), 'ibot')
    assert torch.equal(plain, cast)


@pytest.mark.parametrize(
    ('native', 'grid', 'mode', 'words'),
    [
        ((4, 4), (4, 4), 'bilinear', "pos_interpolation='bilinear'"),
        ((4, 5), (4, 5), 'size', r'does not fit the native grid 4x5'),
        ((4, 4), (3, 6), 'msn', 'square grids only, not 3x6'),
    ],
)
def test_what_cannot_be_done_is_said(native, grid, mode, words):
    with pytest.raises(ValueError, match=words):
        resize_position_embedding(table_of((4, 4)), native, grid, mode)


def test_msn_needs_a_square_native_grid():
    with pytest.raises(ValueError, match='square native grid, not 2x8'):
        resize_position_embedding(table_of((2, 8)), (2, 8), (4, 4), 'msn')
