import random

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from toy_runs import (
    METHODS,
    SnapshotHook,
    assert_equal,
    hook_of,
    make_images,
    toy_runner,
)

from mim_plugins.engine import IterationSeedHook

DROP_PATH = {'model.student.drop_path_rate': 0.3}


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('data') / 'images')


class Disturb(Hook):
    """Draws in between, also with the model; as an evaluation might."""

    def after_train_iter(self, runner, *args, **kwargs):
        torch.rand(3), np.random.rand(3), random.random()
        runner.model.extract_feat(torch.rand(2, 3, 32, 32))


class Draws(Hook):
    """What the parts of other libraries would draw in an iteration."""

    def __init__(self):
        self.numbers = []

    def before_train_iter(self, runner, *args, **kwargs):
        self.numbers.append(
            (torch.rand(()).item(), np.random.rand(), random.random())
        )


def train(folder, images, method, *hooks, **options):
    snapshots, draws = SnapshotHook(), Draws()
    runner = toy_runner(
        folder,
        images,
        method,
        hooks=[snapshots, draws, *hooks],
        **DROP_PATH,
        **options,
    )
    runner.train()
    return snapshots.states, draws.numbers


@pytest.mark.parametrize('method', METHODS)
def test_what_draws_in_between_changes_nothing(method, images, tmp_path):
    plain = train(tmp_path / 'plain', images, method)
    disturbed = train(tmp_path / 'disturbed', images, method, Disturb())
    assert_equal(plain, disturbed)
    assert len(set(plain[1])) == len(plain[1])


def test_another_seed_is_another_run(images, tmp_path):
    """With the same weights and images to start from."""
    sampler = {'train_dataloader.sampler.seed': 0}
    draws = [
        train(
            tmp_path / str(seed),
            images,
            'ibot',
            **sampler,
            **{'randomness.seed': seed},
        )[1]
        for seed in (0, 1)
    ]
    assert not set(draws[0]) & set(draws[1])


def test_the_default_hooks_have_it(images, tmp_path):
    runner = toy_runner(tmp_path, images)
    assert hook_of(runner, IterationSeedHook)


def test_ranks_with_seeds_of_their_own_take_the_first_ones(monkeypatch):
    def broadcast(objects):
        objects[0] = 7

    module = 'mim_plugins.engine.hooks.iteration_seed_hook'
    monkeypatch.setattr(f'{module}.broadcast_object_list', broadcast)
    told = []

    class Model(torch.nn.Module):
        def start_iteration(self, *key):
            told.append(key)

    class Runner:
        model, seed, iter = Model(), 9, 3

    hook = IterationSeedHook()
    hook.before_train(Runner)
    hook.before_train_iter(Runner, 0)
    assert told == [(7, 3, None, None)]
