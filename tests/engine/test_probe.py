import random

import pytest
import torch

from mim_plugins.engine import probe


@pytest.fixture(autouse=True)
def _forget():
    probe.supports_fast_bf16.cache_clear()
    yield
    probe.supports_fast_bf16.cache_clear()


@pytest.mark.parametrize('half, answer', [(0.5, True), (0.9, False)])
def test_a_processor_is_measured(monkeypatch, half, answer):
    times = {torch.float32: 1.0, torch.bfloat16: half}
    monkeypatch.setattr(probe, '_best_time', lambda dtype, n: times[dtype])
    assert probe.supports_fast_bf16('cpu') is answer


def test_one_slow_measurement_does_not_decide(monkeypatch):
    def noisy(dtype, repeats):
        slow = random.Random(len(calls)).random() * 10 if calls else 10
        calls.append(dtype)
        floor = 1.0 if dtype == torch.float32 else 0.5
        return floor + (slow if len(calls) < 7 else 0)

    calls = []
    monkeypatch.setattr(probe, '_best_time', noisy)
    monkeypatch.setattr(probe, 'SECONDS', 60)
    assert probe.supports_fast_bf16('cpu') is True


def test_the_measurement_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    assert probe.supports_fast_bf16('cpu') in (True, False)
    assert torch.equal(torch.get_rng_state(), before)


def test_devices_that_are_not_known_say_no():
    assert probe.supports_fast_bf16('mps') is False


def test_a_slow_processor_is_not_measured_for_long(monkeypatch):
    calls = []

    def slow(dtype, repeats):
        calls.append(dtype)
        return 1.0

    monkeypatch.setattr(probe, '_best_time', slow)
    monkeypatch.setattr(probe, 'SECONDS', -1)
    assert probe.supports_fast_bf16('cpu') is False
    assert len(calls) == 4  # a warm-up and one round
