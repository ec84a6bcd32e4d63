import json
import math

import pytest
import torch
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from toy_features import toy_config, toy_runner

from mim_plugins.evaluation import DiagnosticsHook, NMIHook, cluster_metrics
from mim_plugins.evaluation.hooks import count_prototypes

LIMIT = math.log(16)
HEALTHY = {'cls_target_entropy': 0.8 * LIMIT, 'cls_kl': 0.2 * LIMIT}
UNIFORM = {'cls_target_entropy': 0.9999 * LIMIT, 'cls_kl': 0.0}
SINGLE = {
    'cls_target_entropy': 0.0,
    'cls_kl': 0.0,
    'cls_prototypes_used': 1 / 16,
}


def log_rows(work_dir):
    (path,) = work_dir.glob('*/vis_data/scalars.json')
    return [json.loads(line) for line in path.read_text().splitlines()]


def log_text(work_dir):
    return '\n'.join(p.read_text() for p in work_dir.glob('*/*.log'))


def train(work_dir, hooks, metrics=None, by_epoch=True, **changes):
    config = toy_config(work_dir, by_epoch, **changes)
    config['model']['metrics'] = metrics or HEALTHY
    runner = Runner(**config, custom_hooks=hooks)
    runner.train()
    return runner


@pytest.mark.parametrize('by_epoch', [True, False])
def test_statistics_are_in_the_log_on_logged_iterations(tmp_path, by_epoch):
    runner = train(tmp_path, [{'type': 'DiagnosticsHook'}], by_epoch=by_epoch)
    assert runner.model.diagnosed == 4 * [False, False, True]
    assert not runner.model.diagnose
    rows = [row for row in log_rows(tmp_path) if 'loss' in row]
    assert len(rows) == 4
    for row in rows:
        assert row['cls_target_entropy'] == pytest.approx(0.8 * LIMIT)
        assert row['cls_kl'] == pytest.approx(0.2 * LIMIT)
    expected = runner.optim_wrapper.grad_norm.item()
    assert rows[-1]['gradient_norm'] == pytest.approx(expected)


def test_epochs_shorter_than_the_interval_are_diagnosed_at_their_end(
    tmp_path,
):
    """Where the LoggerHook writes a line as well."""
    runner = train(
        tmp_path,
        [{'type': 'DiagnosticsHook'}],
        default_hooks={'logger': {'type': 'LoggerHook', 'interval': 50}},
    )
    assert runner.model.diagnosed == 2 * (5 * [False] + [True])
    rows = [row for row in log_rows(tmp_path) if 'loss' in row]
    assert [row['iter'] for row in rows] == [6, 12]


@pytest.mark.parametrize(
    ('metrics', 'words'),
    [
        (UNIFORM, 'the loss sits at ln K = 2.773, the known sign'),
        (SINGLE, 'name one prototype of 16'),
    ],
)
def test_collapse_is_named_once(tmp_path, metrics, words):
    hook = {'type': 'DiagnosticsHook', 'patience': 3}
    train(tmp_path, [hook], metrics)
    text = log_text(tmp_path)
    assert text.count(words) == 1
    line = text.split('Iteration 9: in 3 checks in a row ')[1].splitlines()[0]
    assert 'targets of the cls objective' in line
    assert '{' not in line


@pytest.mark.parametrize('metrics', [HEALTHY, UNIFORM])
def test_no_warning_before_its_time(tmp_path, metrics):
    train(tmp_path, [{'type': 'DiagnosticsHook', 'patience': 5}], metrics)
    assert 'collapse' not in log_text(tmp_path)


def test_a_wrapper_without_a_norm_is_named_once(tmp_path):
    train(
        tmp_path,
        [{'type': 'DiagnosticsHook'}],
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.01}},
    )
    text = log_text(tmp_path)
    assert text.count('OptimWrapper does not give the gradient norm') == 1


def test_prototypes_are_counted_per_objective():
    model = torch.nn.Module()
    assert count_prototypes(model) is None
    model.head = torch.nn.Module()
    model.head.last_layer = torch.nn.Linear(3, 16)
    assert count_prototypes(model, 'patch') == 16
    model.head.patch_last_layer = torch.nn.Linear(3, 9)
    assert count_prototypes(model, 'patch') == 9
    assert count_prototypes(model, 'cls') == 16


class Watcher(NMIHook):
    """Keeps what it saw, to compare with what was logged."""

    def __init__(self):
        super().__init__()
        self.passes = []

    def _report(self, runner, epoch, done):
        self.passes.append(
            (list(self.labels), torch.cat(self.assignments).tolist())
        )
        super()._report(runner, epoch, done)


@pytest.mark.parametrize('by_epoch', [True, False])
def test_nmi_of_each_epoch(tmp_path, by_epoch):
    """Also of each pass of a loop that knows no epochs."""
    runner = toy_runner(tmp_path, by_epoch)
    watcher = Watcher()
    runner.register_hook(watcher)
    runner.train()
    rows = [row for row in log_rows(tmp_path) if 'nmi' in row]
    assert [row['step'] for row in rows] == [6, 12]
    for row, (labels, clusters) in zip(rows, watcher.passes):
        assert sorted(labels) == 8 * [0] + 8 * [1] + 8 * [2]
        expected = cluster_metrics(labels, clusters, accuracy=False)
        assert {k: row[k] for k in expected} == pytest.approx(expected)
    assert 'Epoch 2, teacher assignments of 24 images' in log_text(tmp_path)


def test_nmi_without_labels_is_said_once(tmp_path):
    loader = toy_config(tmp_path)['train_dataloader']
    loader['dataset']['labels'] = False
    train(tmp_path, [{'type': 'NMIHook'}], train_dataloader=loader)
    assert not any('nmi' in row for row in log_rows(tmp_path))
    text = log_text(tmp_path)
    assert text.count('NMI is left out: the training data have no label') == 1


def test_hooks_are_registered():
    for hook in (DiagnosticsHook, NMIHook):
        assert HOOKS.get(f'mmpretrain.{hook.__name__}') is hook
