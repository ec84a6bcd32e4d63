import json

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from toy_features import toy_config, toy_runner

from mim_plugins.evaluation import (
    KNNAccuracy,
    KNNLoop,
    extract_features,
    knn_classify,
)
from mim_plugins.evaluation.features import network_encoder
from mim_plugins.evaluation.gathering import FeatureSet
from mim_plugins.evaluation.loops import merge_dataloader

NAMES = {'knn/k3_top1', 'knn/k3_top5', 'knn/k10_top1', 'knn/k10_top5'}


def log_rows(work_dir):
    (path,) = work_dir.glob('*/vis_data/scalars.json')
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize('by_epoch', [True, False])
def test_validates_while_training(tmp_path, by_epoch):
    runner = toy_runner(tmp_path, by_epoch)
    runner.train()
    rows = [row for row in log_rows(tmp_path) if set(row) >= NAMES]
    assert len(rows) == 2
    loop = runner.val_loop
    assert len(loop.dataloader.dataset) == 13
    assert len(loop.bank_dataloader.dataset) == 24
    parts = [
        extract_features(
            runner.model, loader, network_encoder(runner.model, 'teacher')
        )
        for loader in (loop.bank_dataloader, loop.dataloader)
    ]
    ranked = knn_classify(
        parts[0].features, parts[0].labels, parts[1].features, k=3
    )[3]
    expected = 100 * (ranked[:, 0] == parts[1].labels).double().mean()
    assert rows[-1]['knn/k3_top1'] == pytest.approx(float(expected))
    assert runner.model.training


class Recorder(Hook):
    """Losses, and draws from the global generator."""

    def __init__(self):
        self.seen = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.seen.append((outputs['loss'].item(), torch.rand(()).item()))


def test_validation_leaves_the_training_alone(tmp_path):
    """The same losses with and without it, shuffling and dropout included.

    (mmengine always validates after the last epoch.)
    """
    seen = []
    for interval in (1, 10):
        config = toy_config(tmp_path / str(interval))
        config['train_cfg']['val_interval'] = interval
        runner = Runner(**config)
        recorder = Recorder()
        runner.register_hook(recorder)
        runner.train()
        seen.append(recorder.seen)
    validated = [
        len([row for row in log_rows(tmp_path / name) if NAMES & set(row)])
        for name in ('1', '10')
    ]
    assert validated == [2, 1]
    assert len(seen[0]) == 12
    assert seen[0] == seen[1]


def test_test_loop_is_the_same_class(tmp_path):
    config = toy_config(tmp_path)
    for part in ('dataloader', 'cfg', 'evaluator'):
        config[f'test_{part}'] = config[f'val_{part}']
    runner = Runner(**config)
    called = []
    for name in ('before_test', 'after_test_epoch', 'after_val_epoch'):
        setattr(
            runner.hooks[0],
            name,
            lambda *args, n=name, **kwargs: called.append(n),
        )
    metrics = runner.test()
    assert set(metrics) == NAMES
    assert called == ['before_test', 'after_test_epoch']


def test_student_or_teacher(tmp_path):
    found = {}
    for network in (None, 'teacher', 'student'):
        config = toy_config(tmp_path / str(network))
        config['val_cfg']['network'] = network
        runner = Runner(**config)
        loop = runner.val_loop
        bank = []
        loop.evaluator.metrics = [Spy(bank)]
        runner.val()
        found[network] = bank[0].features
        pixels = []
        loop.evaluator.metrics = [Spy(pixels)]
        loop.evaluate_pixels(size=2)
        assert pixels[0].features.shape == (24, 12)
    assert torch.equal(found[None], found['teacher'])
    assert not torch.equal(found['student'], found['teacher'])


class Spy:
    def __init__(self, seen):
        self.seen = seen

    def evaluate_features(self, bank, queries, device):
        self.seen.append(bank)
        return {}


@pytest.mark.parametrize('part', ['queries', 'bank'])
def test_without_labels_it_is_left_out_and_said_once(
    tmp_path, part, monkeypatch
):
    said = []
    monkeypatch.setattr(
        'mim_plugins.evaluation.loops.print_log',
        lambda message, *args, **options: said.append(message),
    )
    config = toy_config(tmp_path)
    if part == 'queries':
        config['val_dataloader']['dataset']['labels'] = False
    else:
        config['val_cfg']['bank_dataloader']['dataset']['labels'] = False
    Runner(**config).train()
    assert not any(NAMES & set(row) for row in log_rows(tmp_path))
    assert said == [
        'k-NN is left out: the ToyPictures of the evaluation has no labels.'
    ]


def test_a_metric_of_predictions_is_refused(tmp_path):
    config = toy_config(tmp_path, val_evaluator={'type': 'Accuracy'})
    with pytest.raises(TypeError, match='Accuracy does not evaluate feat'):
        Runner(**config).val_loop  # noqa: B018
    with pytest.raises(RuntimeError, match="type='KNNLoop'"):
        KNNAccuracy().process(None, [])


def test_bank_takes_the_rest_from_the_queries():
    queries = {
        'batch_size': 8,
        'num_workers': 2,
        'dataset': {'type': 'A', 'split': 'val', 'root': 'x'},
    }
    merged = merge_dataloader(
        queries, {'batch_size': 4, 'dataset': {'split': 'train'}}
    )
    assert merged == {
        'batch_size': 4,
        'num_workers': 2,
        'dataset': {'type': 'A', 'split': 'train', 'root': 'x'},
    }
    merged = merge_dataloader(queries, {'dataset': {'type': 'B'}})
    assert merged['dataset'] == {'type': 'B'}
    assert merged['batch_size'] == 8
    assert queries['dataset']['split'] == 'val'


def features(number, seed):
    generator = torch.Generator().manual_seed(seed)
    return FeatureSet(
        torch.randn(number, 5, generator=generator),
        torch.randint(7, (number,), generator=generator),
    )


def test_percent_of_the_queries():
    bank, queries = features(30, 0), features(11, 1)
    metrics = KNNAccuracy(k=4, chunks=(3, 7)).evaluate_features(bank, queries)
    ranked = knn_classify(bank.features, bank.labels, queries.features, k=4)
    hits = ranked[4] == queries.labels[:, None]
    assert metrics == {
        'knn/k4_top1': pytest.approx(100 * int(hits[:, 0].sum()) / 11),
        'knn/k4_top5': pytest.approx(100 * int(hits.any(1).sum()) / 11),
    }


def test_k_beyond_the_bank_is_left_out(caplog):
    metric = KNNAccuracy(k=(2, 10, 20))
    for _ in range(2):
        metrics = metric.evaluate_features(features(9, 0), features(3, 1))
        assert set(metrics) == {'knn/k2_top1', 'knn/k2_top5'}
    assert len(metric.said) == 1
    with pytest.raises(ValueError, match='smallest k = 2. Set val_evaluator'):
        metric.evaluate_features(features(1, 0), features(3, 1))
    with pytest.raises(ValueError, match='validation data set is empty'):
        metric.evaluate_features(features(9, 0), features(0, 1))


def test_loop_is_registered():
    from mmpretrain.registry import LOOPS, METRICS

    assert LOOPS.get('KNNLoop') is KNNLoop
    assert METRICS.get('KNNAccuracy') is KNNAccuracy
