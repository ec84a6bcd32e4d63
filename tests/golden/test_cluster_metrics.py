import pytest
from golden_files import golden

from mim_plugins.evaluation.cluster_metrics import cluster_metrics

NUMBERS = golden('cluster_metrics')


@pytest.mark.parametrize('case', NUMBERS.cases('nmi'))
def test_cluster_metrics_match_official(case):
    acc = float(NUMBERS[f'{case}/acc'])
    found = cluster_metrics(
        NUMBERS[f'{case}/label'], NUMBERS[f'{case}/pred'], accuracy=acc >= 0
    )
    for name in ('nmi', 'ari', 'fmi'):
        expected = float(NUMBERS[f'{case}/{name}'])
        assert found[name] == pytest.approx(expected, abs=1e-10), name
    if acc >= 0:
        assert found['acc'] == acc
