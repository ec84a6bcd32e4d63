"""Everything in a model keeps its values where a step is called off."""

import copy

import pytest
import torch
from toy_ibot import build_ibot, make_batch, total_loss

from mim_plugins.models.selfsup.running_statistics import RunningStatistics

YES, NO = torch.tensor(True), torch.tensor(False)


def test_statistics_are_put_back():
    norm = torch.nn.BatchNorm1d(3)
    statistics = RunningStatistics(torch.nn.Sequential(norm))
    before = copy.deepcopy(norm.state_dict())
    for _ in range(2):  # micro-batches
        statistics.keep()
        norm(torch.full((4, 3), torch.nan))
    statistics.settle(YES)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize('flag', [None, NO])
def test_statistics_move_on_otherwise(flag):
    norm, plain = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    statistics = RunningStatistics(torch.nn.Sequential(norm))
    for _ in range(3):
        rows = torch.randn(4, 3)
        statistics.keep()
        norm(rows)
        plain(rows)
        statistics.settle(flag)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name
    statistics.settle(YES)  # nothing is left to take back
    assert torch.equal(norm.running_mean, plain.running_mean)


@pytest.mark.parametrize('norm', [None, 'bn'])
def test_a_model_keeps_its_state(norm):
    """Teacher, centres and statistics, of two micro-batches."""
    model = build_ibot(head={'norm': norm}, dtype=torch.float32)
    for flag in (NO, YES):
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad():  # what the optimizer has not done
            model.student.cls_token.add_(1)
        for _ in range(2):
            total_loss(model(make_batch(dtype=torch.float32), mode='loss'))
        model.after_optimizer_step(flag)
        buffers = dict(model.named_buffers(remove_duplicate=False))
        moved = {
            f'{name.split(".")[0]} {"buffer" if name in buffers else "weight"}'
            for name, value in model.state_dict().items()
            if not torch.equal(value, before[name])
        }
        expected = {'student weight'}
        if flag is NO:
            expected |= {'teacher weight', 'objectives buffer'}
            if norm:
                expected |= {'head buffer', 'teacher buffer'}
        assert moved == expected


def test_a_model_without_the_flag_moves_as_with_an_unset_one():
    states = []
    for flag in (None, NO):
        torch.manual_seed(0)
        model = build_ibot(head={'norm': 'bn'})
        model(make_batch(), mode='loss')
        model.after_optimizer_step(flag)
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
