import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mim_plugins.evaluation.cluster_metrics import (
    adjusted_rand_index,
    cluster_metrics,
    clustering_accuracy,
    contingency,
    fowlkes_mallows_index,
    normalized_mutual_information,
)

PAIRS = st.lists(
    st.tuples(st.integers(-3, 4), st.integers(0, 5)), min_size=2, max_size=40
)


def test_known_values():
    """Two classes of two; the clusters split one of them."""
    labels, clusters = [0, 0, 1, 1], [7, 7, 8, 9]
    log = np.log(2)
    found = cluster_metrics(labels, clusters)
    assert found['nmi'] == pytest.approx(log / ((log + 1.5 * log) / 2))
    assert found['fmi'] == pytest.approx(np.sqrt(1 / 2))
    assert found['ari'] == pytest.approx((1 - 1 / 3) / (1.5 - 1 / 3))
    assert found['acc'] == 3 / 4


@settings(max_examples=40, deadline=None)
@given(pairs=PAIRS, seed=st.integers(0, 100))
def test_names_of_clusters_do_not_matter(pairs, seed):
    labels, clusters = map(np.array, zip(*pairs))
    names = np.random.default_rng(seed).permutation(6) * 10
    found = cluster_metrics(labels, names[clusters])
    assert found == pytest.approx(cluster_metrics(labels, clusters))
    assert 0 <= found['nmi'] <= 1
    assert found['ari'] <= 1 + 1e-12
    assert 0 < found['acc'] <= 1


@settings(max_examples=40, deadline=None)
@given(pairs=PAIRS)
def test_pair_counts_equal_the_definition(pairs):
    labels, clusters = map(np.array, zip(*pairs))
    above = np.triu_indices(len(labels), 1)
    same_class = (labels[:, None] == labels)[above]
    same_cluster = (clusters[:, None] == clusters)[above]
    both = (same_class & same_cluster).sum()
    expected = 0.0
    if both:
        expected = both / np.sqrt(same_class.sum() * same_cluster.sum())
    found = fowlkes_mallows_index(labels, clusters)
    assert found == pytest.approx(expected)


def test_same_partition_is_one_everywhere():
    for labels in ([3, 3, 3], [1, 2, 3], [0, 0, 1, 1]):
        assert normalized_mutual_information(labels, labels) == 1
        assert adjusted_rand_index(labels, labels) == 1
        assert clustering_accuracy(labels, labels) == 1


def test_one_cluster_says_nothing():
    assert normalized_mutual_information([0, 1, 2], [0, 0, 0]) == 0
    assert adjusted_rand_index([0, 1, 2], [0, 0, 0]) == 0


def test_large_counts_do_not_overflow():
    labels = np.repeat([0, 1], 200_000)
    assert adjusted_rand_index(labels, labels) == 1
    assert fowlkes_mallows_index(labels, 1 - labels) == pytest.approx(1)


def test_contingency_counts_what_is_present():
    table = contingency([5, 5, 9], [1, 0, 1])
    assert table.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize(
    ('labels', 'clusters', 'words'),
    [
        ([0, 1], [0], 'one length'),
        ([], [], 'non-empty'),
        ([0.5, 1], [0, 1], 'must be integers'),
    ],
)
def test_bad_input_is_named(labels, clusters, words):
    with pytest.raises(ValueError, match=words):
        contingency(labels, clusters)
