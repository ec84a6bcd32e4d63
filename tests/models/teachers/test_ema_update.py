import pytest
import torch
from torch import nn

from mim_plugins.models.teachers.ema_update import common_names, ema_update


def tensors(value, dtype=torch.float32):
    return [torch.full((2, 3), value, dtype=dtype), torch.full((), value)]


@pytest.mark.parametrize('momentum', [0.0, 0.25, 0.996, 1.0])
def test_moving_average(momentum):
    teacher, student = tensors(1.0), tensors(3.0)
    ema_update(teacher, student, momentum)
    for tensor in teacher:
        expected = torch.full_like(tensor, 3.0 - 2.0 * momentum)
        torch.testing.assert_close(tensor, expected)
    assert all((s == 3.0).all() for s in student)


def test_parameters_that_require_gradients():
    teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
    ema_update(list(teacher.parameters()), list(student.parameters()), 0.0)
    torch.testing.assert_close(teacher.weight, student.weight)
    assert teacher.weight.grad_fn is None


def test_a_student_in_another_type():
    teacher, student = tensors(1.0), tensors(3.0, torch.bfloat16)
    ema_update(teacher, student, 0.5)
    assert teacher[0].dtype == torch.float32
    assert (teacher[0] == 2.0).all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('momentum', [0.0, 0.3, 0.996, 1.0])
def test_a_flag_keeps_the_teacher_and_changes_no_bit_otherwise(
    dtype, momentum
):
    start = [torch.randn(3, 2, dtype=dtype), torch.randn(4, dtype=dtype)]
    student = [torch.randn_like(tensor) for tensor in start]
    results = []
    for flag in (None, torch.tensor(False), torch.tensor(True)):
        teacher = [tensor.clone() for tensor in start]
        ema_update(teacher, student, momentum, flag)
        results.append(teacher)
    for none, unset, kept, before in zip(*results, start):
        assert torch.equal(none, unset)
        assert torch.equal(kept, before)


def test_nothing_to_average():
    ema_update([], [], 0.5)


def test_lengths_differ():
    with pytest.raises(ValueError, match='2 tensors of the teacher, 1 of'):
        ema_update(tensors(1.0), tensors(1.0)[:1], 0.5)


def test_common_names_of_modules():
    teacher = nn.ModuleDict({'b': nn.Linear(2, 2), 'a': nn.Linear(2, 1)})
    student = nn.ModuleDict(
        {'a': nn.Linear(2, 1), 'b': nn.Linear(2, 2), 'c': nn.Linear(1, 1)}
    )
    names = ['b.weight', 'b.bias', 'a.weight', 'a.bias']
    assert common_names(teacher, student) == names


def test_common_names_of_two_shapes():
    teacher = nn.ModuleDict({'a': nn.Linear(2, 1)})
    student = nn.ModuleDict({'a': nn.Linear(3, 1)})
    with pytest.raises(ValueError, match=r"'a.weight': \(1, 2\) and \(1, 3\)"):
        common_names(teacher, student)
