import numpy as np
import pytest
import torch
from golden_files import golden

from mim_plugins.evaluation.knn import (
    class_scores,
    count_hits,
    knn_classify,
    nearest_neighbours,
    ranked_classes,
)

NUMBERS = golden('knn')
CASES = NUMBERS.cases('scores')
DTYPES = [torch.float32, torch.float64]
CHUNKS = [(1024, 16384), (7, 11)]


def data(dtype):
    return (
        NUMBERS.tensor('train_features', dtype),
        NUMBERS.tensor('train_labels'),
        NUMBERS.tensor('test_features', dtype),
        NUMBERS.tensor('test_labels'),
    )


@pytest.mark.parametrize('chunks', CHUNKS)
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('case', CASES)
def test_knn_scores_and_order_match_official(case, dtype, chunks):
    train, labels, test, _ = data(dtype)
    hp, num_classes = NUMBERS.hp(case), NUMBERS.hp()['num_classes']
    found = nearest_neighbours(train, test, hp['k'], chunks)
    scores = class_scores(
        found.similarity, labels[found.index], num_classes, hp['T']
    )
    rtol = 1e-10 if dtype == torch.float64 else 1e-4
    np.testing.assert_allclose(
        scores.numpy(), NUMBERS[f'{case}/scores'], rtol=rtol
    )
    order = ranked_classes(scores, top=num_classes).numpy()
    np.testing.assert_array_equal(order, NUMBERS[f'{case}/order'])


@pytest.mark.parametrize('chunks', CHUNKS)
@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('case', CASES)
def test_knn_accuracy_matches_official(case, dtype, chunks):
    train, labels, test, test_labels = data(dtype)
    hp = NUMBERS.hp(case)
    ranked = knn_classify(
        train,
        labels,
        test,
        k=hp['k'],
        temperature=hp['T'],
        num_classes=NUMBERS.hp()['num_classes'],
        chunks=chunks,
    )[hp['k']]
    np.testing.assert_array_equal(ranked[:, 0], NUMBERS[f'{case}/pred'])
    first, among_five = count_hits(ranked, test_labels)
    assert 100 * first / len(test) == float(NUMBERS[f'{case}/top1'])
    assert 100 * among_five / len(test) == float(NUMBERS[f'{case}/top5'])


def test_knn_of_several_k_equals_each_alone():
    train, labels, test, _ = data(torch.float32)
    ks = [NUMBERS.hp(case)['k'] for case in CASES]
    together = knn_classify(train, labels, test, k=ks)
    for k in ks:
        alone = knn_classify(train, labels, test, k=k)[k]
        assert torch.equal(together[k], alone)
