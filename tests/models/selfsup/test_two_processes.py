"""Two processes with half of the images each compute what one computes."""

import pytest
import torch
from toy_processes import (
    centre_rows,
    move_centre,
    norm_rows,
    normalise_tokens,
    spawn,
    train_ibot,
)


@pytest.fixture(scope='module')
def processes(tmp_path_factory):
    return spawn(tmp_path_factory.mktemp('group'))


def test_centres(processes):
    """Also where one process, or none, has seen logits in a step."""
    both = [
        first + second for first, second in zip(centre_rows(0), centre_rows(1))
    ]
    alone = move_centre(both)
    assert not torch.equal(alone[0], alone[1])
    assert torch.equal(alone[1], alone[2])
    for process in processes:
        torch.testing.assert_close(process['centres'], alone)


def test_batch_norm_of_the_head(processes):
    """Unequal numbers of tokens; torch's own batch norm as the measure."""
    tokens, cotangent = (rows.flatten(0, 1) for rows in norm_rows())
    alone = normalise_tokens(tokens, cotangent, torch.nn.BatchNorm1d)
    parts = [process['norm'] for process in processes]
    for key in ('out', 'grad'):
        joined = torch.cat([part[key] for part in parts]).flatten(0, 1)
        torch.testing.assert_close(joined, alone[key])
    for key in ('weight_grad', 'bias_grad'):
        total = sum(part[key] for part in parts)
        torch.testing.assert_close(total, alone[key])
    for part in parts:
        for key in ('mean', 'var', 'steps'):
            torch.testing.assert_close(part[key], alone[key])


@pytest.mark.parametrize(
    ('key', 'centre_tokens'), [('ibot', 'all'), ('masked', 'masked')]
)
def test_loss_gradients_and_centres_of_ibot(processes, key, centre_tokens):
    """Here one of the processes has no masked token at all."""
    alone = train_ibot(centre_tokens=centre_tokens)
    assert alone['loss_patch'] > 0
    for process in processes:
        assert process[key].keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(
                process[key][name], value, msg=lambda m, n=name: f'{n}: {m}'
            )
