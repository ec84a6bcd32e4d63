import pytest
import torch

from mim_plugins.engine.optimizers import finite_watch
from mim_plugins.engine.optimizers.finite_watch import FiniteWatch

BAD = [float('nan'), float('inf'), -float('inf')]


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16])
@pytest.mark.parametrize('value', BAD)
def test_the_first_bad_iteration_is_kept(value, dtype):
    watch = FiniteWatch(torch.device('cpu'))
    numbers = [1.0, -65504.0, value, 2.0, value]
    for iteration, number in enumerate(numbers, 1):
        watch.look(torch.tensor(number, dtype=dtype), iteration)
        assert bool(watch.agree()) == (iteration >= 3)
    assert watch.first() == 3
    assert bool(watch.halted)


def test_nothing_bad():
    watch = FiniteWatch(torch.device('cpu'))
    watch.look(torch.ones(1), 1)
    assert watch.first() is None
    assert watch.halted.dtype == torch.bool
    assert watch.halted.shape == ()


def test_the_earliest_process_counts(monkeypatch):
    def other_process(number, op):
        assert op == 'min'
        number.clamp_(max=4)

    monkeypatch.setattr(finite_watch, 'all_reduce', other_process)
    watch = FiniteWatch(torch.device('cpu'))
    watch.look(torch.tensor(torch.nan), 6)
    assert watch.first() == 4
