import random

import numpy as np
import pytest
import torch

from mim_plugins.models.randomness import (
    IterationRandomness,
    start_iteration,
    to_device,
)


def draw(batch=6, shape=(2,), calls=1, seed=0, iteration=0, **part):
    """What the last of some calls gives."""
    randomness = IterationRandomness()
    randomness.start(seed, iteration, **part)
    for _ in range(calls):
        numbers = randomness.uniform(batch, *shape)
    return numbers


@pytest.mark.parametrize('processes', [1, 2, 3])
def test_processes_draw_what_one_draws(processes):
    together = torch.stack(
        [
            draw(6 // processes, rank=rank, processes=processes)
            for rank in range(processes)
        ],
        dim=1,
    )
    assert torch.equal(together.flatten(0, 1), draw())


def test_a_smaller_batch_has_the_same_numbers():
    part = {'rank': 1, 'processes': 2}
    assert torch.equal(draw(2, **part), draw(**part)[:2])


def test_every_key_has_its_own_numbers():
    keys = [
        {},
        {'seed': 1},
        {'iteration': 1},
        {'seed': 1, 'iteration': 1},
        {'calls': 2},
        {'calls': 3},
    ]
    draws = [draw(**key) for key in keys]
    for i, one in enumerate(draws):
        assert one.min() >= 0 and one.max() < 1
        assert torch.equal(one, draw(**keys[i]))
        assert not any(torch.equal(one, other) for other in draws[:i])


def test_an_iteration_starts_again_at_the_first_call():
    randomness = IterationRandomness()
    assert not randomness.started
    for _ in range(2):
        randomness.start(0, 0)
        assert torch.equal(randomness.uniform(6, 2), draw())


def global_draws(*key, rank=0):
    start_iteration(torch.nn.Linear(1, 1), *key, rank=rank)
    return torch.rand(()).item(), np.random.rand(), random.random()


def test_global_generators_depend_on_seed_iteration_and_rank():
    draws = [
        global_draws(*key, rank=rank)
        for key in ((0, 0), (0, 1), (1, 0))
        for rank in (0, 1)
    ]
    assert global_draws(0, 0) == draws[0]
    for column in zip(*draws):
        assert len(set(column)) == len(draws)


def test_numbers_stay_on_the_processor_if_the_model_is_there():
    numbers = torch.rand(3)
    assert to_device(numbers, torch.device('cpu')) is numbers
