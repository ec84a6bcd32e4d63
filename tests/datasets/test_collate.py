import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.registry import FUNCTIONS
from mmpretrain.structures import DataSample

from mim_plugins.datasets import collate_views
from mim_plugins.datasets.collate import batch_masks


def sample_of(number, masks=True):
    """Views are filled with 10 * sample + view; masks are random."""
    rng = np.random.default_rng(number)
    num = {'global': 2, 'local': 3}
    sizes = {'global': (4, 6), 'local': (2, 2)}

    def filled(group, shape, dtype):
        return [
            torch.full(shape, 10 * number + v, dtype=dtype)
            for v in range(num[group])
        ]

    inputs = {
        'views': {
            g: filled(g, (3, *size), torch.uint8) for g, size in sizes.items()
        },
        'boxes': {g: filled(g, (5,), torch.float32) for g in sizes},
        'image_size': torch.tensor([30.0 + number, 40.0]),
    }
    if masks:
        inputs['masks'] = {'global': rng.random((2, 2, 3)) < 0.4}
    data_sample = DataSample(metainfo={'sample_idx': number})
    return {'inputs': inputs, 'data_samples': data_sample}


def test_rows_are_crop_major():
    batch = collate_views([sample_of(n) for n in range(4)])
    inputs = batch['inputs']
    assert inputs['num_views'] == {'global': 2, 'local': 3}
    assert inputs['views']['global'].shape == (8, 3, 4, 6)
    assert inputs['views']['local'].shape == (12, 3, 2, 2)
    assert inputs['views']['local'].dtype == torch.uint8
    rows = inputs['views']['global'][:, 0, 0, 0].tolist()
    assert rows == [0, 10, 20, 30, 1, 11, 21, 31]
    assert inputs['boxes']['global'][:, 0].tolist() == rows
    assert inputs['boxes']['local'].shape == (12, 5)
    assert inputs['image_size'].tolist() == [[30 + n, 40] for n in range(4)]
    samples = batch['data_samples']
    assert [s.sample_idx for s in samples] == [0, 1, 2, 3]


def test_masks_follow_the_rows_of_the_views():
    samples = [sample_of(n) for n in range(4)]
    masks = collate_views(samples)['inputs']['masks']['global']
    assert masks['grid'] == (2, 3)
    for view in range(2):
        for n, sample in enumerate(samples):
            expected = sample['inputs']['masks']['global'][view].reshape(-1)
            row = masks['mask'][view * 4 + n]
            np.testing.assert_array_equal(row.numpy(), expected)


def test_views_of_a_worker_are_put_straight_into_shared_memory(monkeypatch):
    batch = collate_views([sample_of(n) for n in range(2)])
    assert not batch['inputs']['views']['global'].is_shared()
    monkeypatch.setattr(torch.utils.data, 'get_worker_info', lambda: object())
    shared = collate_views([sample_of(n) for n in range(2)])
    for group, views in shared['inputs']['views'].items():
        assert views.is_shared()
        assert torch.equal(views, batch['inputs']['views'][group])


def test_without_masks_the_key_is_absent():
    batch = collate_views([sample_of(0, masks=False)])
    assert 'masks' not in batch['inputs']


@settings(max_examples=60, deadline=None)
@given(
    views=st.integers(1, 3),
    size=st.integers(1, 4),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    ratio=st.floats(0, 1),
    multiple=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
def test_flat_masks_say_the_same_as_the_masks(
    views, size, grid, ratio, multiple, seed
):
    rng = np.random.default_rng(seed)
    masks = rng.random((views, size, *grid)) < ratio
    flat = batch_masks(masks, multiple)
    rows, tokens = views * size, grid[0] * grid[1]
    assert flat['mask'].shape == (rows, tokens)
    assert flat['mask'].dtype == torch.bool
    assert flat['index'].dtype == torch.int64
    assert flat['weight'].dtype == torch.float32
    count, length = flat['count'], len(flat['index'])
    assert count == masks.sum()
    assert len(flat['weight']) == length
    assert length % multiple == 0
    assert max(count, 1) <= length < max(count, 1) + multiple
    rebuilt = torch.zeros(rows * tokens, dtype=torch.bool)
    rebuilt[flat['index'][:count]] = True
    assert torch.equal(rebuilt.view(rows, tokens), flat['mask'])
    assert not flat['weight'][count:].any()
    assert not flat['index'][count:].any()
    # the weights of each crop with a mask sum to one
    crop = flat['index'][:count] // tokens
    sums = torch.zeros(rows).index_add(0, crop, flat['weight'][:count])
    has_mask = flat['mask'].any(dim=1).float()
    torch.testing.assert_close(sums, has_mask, atol=1e-5, rtol=0)


def test_empty_masks_still_give_one_padded_block():
    flat = batch_masks(np.zeros((2, 3, 4, 4), dtype=bool), 8)
    assert flat['count'] == 0
    assert flat['index'].tolist() == [0] * 8
    assert flat['weight'].tolist() == [0] * 8


def test_registered_and_checked():
    assert FUNCTIONS.get('collate_views') is collate_views
    with pytest.raises(ValueError, match='pad_multiple'):
        collate_views([sample_of(0)], pad_multiple=0)
