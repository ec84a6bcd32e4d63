import logging
from types import SimpleNamespace

import pytest
import torch
from mmpretrain.registry import HOOKS
from torch import nn

import mim_plugins  # noqa: F401


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)

    def tokens(self, x):
        return self.layer(x) + 1


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = Encoder()
        self.other = Encoder()


class Counter:
    """A compiler that counts graphs and leaves them as they are."""

    def __init__(self, broken=False):
        self.graphs = 0
        self.broken = broken

    def __call__(self, graph, inputs):
        if self.broken:
            raise RuntimeError('g++ was not found\nand a long trace')
        self.graphs += 1
        return graph.forward


def runner_of(model):
    return SimpleNamespace(model=model, logger=logging.getLogger('toy'))


def hook(backend, **kwargs):
    torch._dynamo.reset()
    return HOOKS.build(
        {'type': 'CompileHook', 'options': {'backend': backend}, **kwargs}
    )


def test_modules_and_methods_are_compiled():
    model, x = Toy(), torch.ones(2, 3)
    names = list(model.state_dict())
    expected = model.student.tokens(x), model.student(x), model.other(x)
    counter = Counter()
    targets = ('student.tokens', 'student')
    hook(counter, targets=targets).before_train(runner_of(model))
    tried = counter.graphs
    assert tried == 1
    assert torch.equal(model.student.tokens(x), expected[0])
    assert counter.graphs == tried + 1
    assert torch.equal(model.student(x), expected[1])
    assert counter.graphs == tried + 2
    assert torch.equal(model.other(x), expected[2])
    assert counter.graphs == tried + 2
    assert list(model.state_dict()) == names


def test_without_a_compiler_training_goes_on(caplog):
    model, x = Toy(), torch.ones(2, 3)
    broken = Counter(broken=True)
    hook(broken, targets=('student',)).before_train(runner_of(model))
    (record,) = (r for r in caplog.records if r.name == 'toy')
    assert 'does not work here' in record.message
    assert 'g++ was not found' in record.message
    assert 'long trace' not in record.message
    assert model.student(x).shape == (2, 3)


def test_without_a_compiler_when_it_is_required():
    broken = hook(Counter(broken=True), targets='student', required=True)
    with pytest.raises(RuntimeError, match=r'C\+\+ compiler is needed'):
        broken.before_train(runner_of(Toy()))


def test_a_missing_target_is_named():
    with pytest.raises(AttributeError, match='parts student, other'):
        hook(Counter(), targets='teacher').before_train(runner_of(Toy()))


@pytest.mark.full
def test_the_default_compiler():
    torch._dynamo.reset()
    model, x = Toy(), torch.ones(2, 3)
    expected = model.student(x)
    compiler = HOOKS.build({'type': 'CompileHook', 'targets': 'student'})
    compiler.before_train(runner_of(model))
    torch.testing.assert_close(model.student(x), expected)
