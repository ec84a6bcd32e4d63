import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mim_plugins.evaluation.knn import (
    class_scores,
    count_hits,
    knn_classify,
    nearest_neighbours,
    ranked_classes,
    stable_topk,
)


def literal_votes(bank, labels, query, k, temperature, num_classes):
    """Scores of one query, number by number."""
    cosines = [
        sum(a * b for a, b in zip(row, query))
        / math.hypot(*row)
        / math.hypot(*query)
        for row in bank.tolist()
    ]
    order = sorted(range(len(bank)), key=lambda i: (-cosines[i], i))
    scores = [0.0] * num_classes
    for i in order[:k]:
        scores[labels[i]] += math.exp(cosines[i] / temperature)
    return scores


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 12)),
    chunks=st.tuples(st.integers(1, 15), st.integers(1, 35)),
    k=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_scores_equal_the_definition_for_any_chunks(sizes, chunks, k, seed):
    generator = torch.Generator().manual_seed(seed)
    k = min(k, sizes[0])
    bank, queries = (
        torch.randn(n, 5, generator=generator).double() for n in sizes
    )
    labels = torch.randint(4, (sizes[0],), generator=generator)
    found = nearest_neighbours(bank, queries, k, chunks)
    scores = class_scores(found.similarity, labels[found.index], 4, 0.1)
    expected = [
        literal_votes(bank, labels, row, k, 0.1, 4) for row in queries.tolist()
    ]
    torch.testing.assert_close(scores, torch.tensor(expected).double())


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.integers(0, 3), min_size=9, max_size=9),
        min_size=1,
        max_size=5,
    ),
    k=st.integers(1, 9),
)
def test_stable_topk_prefers_the_lower_column(rows, k):
    value, index = stable_topk(torch.tensor(rows).float(), k)
    for row, values, columns in zip(rows, value.tolist(), index.tolist()):
        order = sorted(range(9), key=lambda i: (-row[i], i))[:k]
        assert columns == order
        assert values == [row[i] for i in order]


@pytest.mark.parametrize('chunk', [2, 3, 100])
def test_equal_neighbours_come_in_the_order_of_the_bank(chunk):
    bank = torch.tensor([[0.0, 1], [1, 0], [2, 0], [4, 0], [0, 2], [8, 0]])
    found = nearest_neighbours(bank, torch.tensor([[1.0, 0]]), 3, (1, chunk))
    assert found.index.tolist() == [[1, 2, 3]]


def test_a_class_without_a_vote_is_never_among_the_top():
    """Not even where fewer than five classes have one."""
    bank = torch.eye(8)
    labels = torch.arange(8)
    ranked = knn_classify(bank, labels, torch.eye(8)[:1], k=2, top=5)[2]
    assert ranked.tolist() == [[0, 1, -1, -1, -1]]
    assert count_hits(ranked, torch.tensor([7])) == (0, 0)
    assert count_hits(ranked, torch.tensor([1])) == (0, 1)
    assert count_hits(ranked, torch.tensor([0])) == (1, 1)


def test_equal_scores_are_ranked_by_class_number():
    scores = torch.tensor([[0.0, 2, 3, 2, 3]]).double()
    assert ranked_classes(scores, 4).tolist() == [[2, 4, 1, 3]]


def test_fewer_classes_than_top():
    ranked = knn_classify(
        torch.eye(2), torch.tensor([0, 1]), torch.eye(2), k=1
    )[1]
    assert ranked.tolist() == [[0, -1], [1, -1]]


def test_no_queries():
    ranked = knn_classify(
        torch.eye(3), torch.arange(3), torch.zeros(0, 3), k=(1, 2)
    )
    assert ranked[2].shape == (0, 3)


def test_low_precision_features_are_raised_to_float32():
    generator = torch.Generator().manual_seed(0)
    bank = torch.randn(40, 6, generator=generator).half()
    found = nearest_neighbours(bank, bank[:5], 4)
    expected = nearest_neighbours(bank.float(), bank[:5].float(), 4)
    assert found.similarity.dtype == torch.float32
    assert torch.equal(found.index, expected.index)


@pytest.mark.parametrize(
    ('changes', 'words'),
    [
        ({'k': 5}, 'k=5 neighbours were asked of a bank of 4 samples'),
        ({'k': 0}, r'k must lie in \[1, 4\]'),
        ({'train_labels': torch.tensor([0, 1, 2])}, 'one label for each'),
        ({'train_labels': torch.tensor([0, 1, 2, -1])}, r'lie in \[-1, 2\]'),
        ({'num_classes': 3}, 'does not fit 3 classes'),
        ({'test_features': torch.ones(2, 3)}, 'width 4, the queries of'),
        ({'test_features': torch.ones(4)}, r'queries .* shape \(4,\)'),
        ({'test_features': torch.full((1, 4), math.nan)}, 'has diverged'),
        ({'temperature': 0.0}, 'would overflow'),
    ],
)
def test_bad_input_is_named(changes, words):
    arguments = {
        'train_features': torch.eye(4),
        'train_labels': torch.arange(4),
        'test_features': torch.eye(4),
        'k': 2,
    }
    with pytest.raises(ValueError, match=words):
        knn_classify(**{**arguments, **changes})


def test_a_bad_row_of_the_bank_is_counted_from_its_start():
    bank = torch.eye(9)
    bank[7, 2] = math.inf
    with pytest.raises(ValueError, match='Row 7 of the bank'):
        nearest_neighbours(bank, torch.eye(9), 2, (4, 3))
