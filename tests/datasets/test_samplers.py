import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.registry import DATA_SAMPLERS as ROOT
from mmpretrain.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler

from mim_plugins.datasets import PassSampler, SampleKey, samplers


def sampler_of(size, rank=0, world=1, **options):
    """A sampler as process ``rank`` of ``world`` builds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samplers, 'get_dist_info', lambda: (rank, world))
        return PassSampler(range(size), **{'seed': 0, **options})


def take(sampler, num):
    return [key for key, _ in zip(sampler, range(num))]


def test_registered_for_the_runner():
    built = DATA_SAMPLERS.build(
        {'type': 'PassSampler', 'dataset': range(3), 'seed': 1}
    )
    assert isinstance(built, PassSampler)
    assert ROOT.get('PassSampler') is None


@settings(max_examples=50, deadline=None)
@given(
    size=st.integers(1, 60),
    world=st.integers(1, 4),
    per_process=st.integers(1, 5),
    epoch=st.integers(0, 5),
)
def test_batches_of_all_processes_are_those_of_one(
    size, world, per_process, epoch
):
    if size < world:
        return
    batches = []
    for rank in range(world):
        sampler = sampler_of(size, rank, world)
        sampler.set_epoch(epoch)
        batches.append(list(BatchSampler(sampler, per_process, True)))
    single = sampler_of(size)
    single.set_epoch(epoch)
    expected = list(BatchSampler(single, per_process * world, True))
    assert {len(b) for b in batches} == {len(expected)}
    for b, batch in enumerate(expected):
        union = [key for rank in batches for key in rank[b]]
        assert set(union) == set(batch) and len(union) == len(batch)


@pytest.mark.parametrize('world', [1, 2, 3, 4])
def test_tail_is_dropped_and_nothing_is_repeated(world):
    ranks = [list(sampler_of(11, r, world)) for r in range(world)]
    assert {len(rank) for rank in ranks} == {11 // world}
    assert len(sampler_of(11, 0, world)) == 11 // world
    seen = [key.index for rank in ranks for key in rank]
    assert len(set(seen)) == len(seen) == 11 // world * world


def test_keys_carry_seed_and_epoch():
    sampler = sampler_of(5, seed=7)
    sampler.set_epoch(3)
    keys = list(sampler)
    assert all(isinstance(key, SampleKey) for key in keys)
    assert {key[1:] for key in keys} == {(7, 3, 0)}
    assert sorted(key.index for key in keys) == list(range(5))
    assert pickle.loads(pickle.dumps(keys)) == keys


def test_order_depends_on_seed_and_epoch_only():
    def order(seed, epoch):
        return sampler_of(50, seed=seed).order(epoch).tolist()

    assert order(0, 0) == order(0, 0)
    orders = [order(seed, epoch) for seed in range(4) for epoch in range(4)]
    assert len({tuple(o) for o in orders}) == 16


def test_without_shuffling_the_order_is_the_data_sets():
    sampler = sampler_of(6, 1, 2, shuffle=False)
    assert [key.index for key in sampler] == [1, 3, 5]


def test_missing_seed_is_agreed_on(monkeypatch):
    monkeypatch.setattr(samplers, 'sync_random_seed', lambda: 123)
    assert sampler_of(3, seed=None).seed == 123


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 12), world=st.integers(1, 4), skip=st.integers(0, 40)
)
def test_infinite_passes_have_no_gap_for_any_world(size, world, skip):
    single = take(sampler_of(size, infinite=True), 80)
    assert [key.epoch for key in single] == [i // size for i in range(80)]
    for first in range(0, 80 - size, size):
        indices = [key.index for key in single[first : first + size]]
        assert sorted(indices) == list(range(size))
    for rank in range(world):
        sampler = sampler_of(size, rank, world, infinite=True)
        num = len(single[rank::world])
        assert take(sampler, num) == single[rank::world]
        sampler.skip(min(skip, num))
        rest = single[rank::world][min(skip, num) :]
        assert take(sampler, len(rest)) == rest


def test_infinite_starts_at_the_epoch_that_was_set():
    sampler = sampler_of(3, infinite=True)
    sampler.set_epoch(5)
    assert [key.epoch for key in take(sampler, 7)] == [5, 5, 5, 6, 6, 6, 7]


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(4, 30), world=st.integers(1, 4), used=st.integers(0, 40)
)
def test_a_pass_goes_on_after_what_was_used(size, world, used):
    for rank in range(world):
        sampler = sampler_of(size, rank, world)
        whole = list(sampler)
        sampler.start_after(used)
        assert list(sampler) == whole[used:]
        assert len(sampler) == len(whole)
        sampler.start_after(0)
        assert list(sampler) == whole


def test_only_infinite_samplers_can_skip():
    """mmengine looks for ``skip``, and else draws the skipped batches."""
    assert not hasattr(sampler_of(3), 'skip')
    with pytest.raises(ValueError, match='negative'):
        sampler_of(3, infinite=True).skip(-1)


def test_empty_data_set_is_refused():
    with pytest.raises(ValueError, match='range holds no images'):
        sampler_of(0)


def test_fewer_images_than_processes_are_refused():
    with pytest.raises(ValueError, match='2 images cannot be shared by 3'):
        sampler_of(2, 0, 3)
    assert len(take(sampler_of(2, 2, 3, infinite=True), 4)) == 4


def test_negative_seed_is_refused():
    with pytest.raises(ValueError, match='seed'):
        sampler_of(3, seed=-1)
