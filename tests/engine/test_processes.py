"""N processes with B / N images each compute what one with B computes."""

import pytest
import torch
from toy_processes import Case, train
from toy_resume import METHODS
from toy_runs import assert_equal, in_processes

CASES = [
    Case(method, *case)
    for method in METHODS
    for case in (
        (0.0, None, 'tensor'),
        (0.3, None, 'global'),
        (0.0, 'bn', 'global'),
        (0.3, 'bn', 'tensor', 2),
    )
]


def train_all(rank):
    return [train(case, rank, processes=2) for case in CASES]


@pytest.fixture(scope='module')
def two_processes(tmp_path_factory):
    """Results of all cases, by process."""
    return in_processes(train_all, tmp_path_factory.mktemp('group'))


@pytest.mark.parametrize('case', CASES, ids=str)
def test_two_processes_train_as_one(case, two_processes):
    """Also where one process, or none, has masked tokens."""
    alone = train(case)
    assert not torch.equal(alone['loss 0'], alone['loss 3'])
    for process in two_processes:
        found = process[CASES.index(case)]
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(
                found[name],
                value,
                rtol=1e-9,
                atol=1e-9,
                msg=lambda text, name=name: f'{name}: {text}',
            )


@pytest.mark.parametrize('case', CASES[-1:], ids=str)
def test_a_group_of_one_is_as_none(case, tmp_path):
    alone = train(case)
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    try:
        grouped = train(case)
    finally:
        torch.distributed.destroy_process_group()
    assert_equal(grouped, alone)
