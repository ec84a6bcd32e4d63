import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner
from toy_features import toy_config

from mim_plugins.checkpoints import CheckpointError, CheckpointMismatch
from mim_plugins.engine.launch import ConfigError
from mim_plugins.evaluation.offline import (
    format_table,
    load_weights,
    prepare_test,
    run_test,
)


def build(work_dir, **changes):
    cfg = Config(toy_config(work_dir, **changes))
    return Runner.from_cfg(prepare_test(cfg))


@pytest.fixture
def checkpoint(tmp_path):
    runner = Runner(**toy_config(tmp_path / 'train'))
    torch.nn.init.normal_(runner.model.teacher.project.weight)
    runner.train()
    return runner, tmp_path / 'train' / 'epoch_2.pth'


def test_trained_untrained_and_pixels(tmp_path, checkpoint):
    trainer, path = checkpoint
    runner = build(tmp_path / 'test')
    results = run_test(runner, str(path), untrained=True, pixels=True)
    assert list(results) == ['pixels', 'untrained', 'trained']
    assert results['trained'] == trainer.val_loop.run()
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(runner.model.state_dict()[name], value)
    again = run_test(build(tmp_path / 'again'), pixels=True)
    assert again == {'pixels': results['pixels']}


def test_untrained_is_what_training_starts_from(tmp_path):
    runner = build(tmp_path)
    run_test(runner, untrained=True)
    for network in (runner.model.student, runner.model.teacher):
        weight = network.project.weight
        torch.testing.assert_close(weight @ weight.T, torch.eye(8))


def test_network_is_chosen(tmp_path):
    cfg = prepare_test(Config(toy_config(tmp_path)), network='student')
    assert cfg.test_cfg.network == 'student'
    assert cfg.val_cfg.get('network') in (None, 'student')


def test_a_config_without_evaluation(tmp_path):
    config = toy_config(tmp_path, val_evaluator=None)
    with pytest.raises(ConfigError, match='neither test_eval.* nor val_eval'):
        prepare_test(Config(config))
    config = toy_config(tmp_path, test_cfg={'type': 'TestLoop'})
    with pytest.raises(ConfigError, match='chooses the network of a KNNLoop'):
        prepare_test(Config(config), network='student')


def test_a_missing_file_is_named_before_any_work(tmp_path):
    runner = build(tmp_path)
    with pytest.raises(CheckpointError, match='nowhere.pth'):
        run_test(runner, str(tmp_path / 'nowhere.pth'), pixels=True)
    with pytest.raises(ConfigError, match='Nothing to evaluate'):
        run_test(runner)


def test_a_file_that_does_not_fit_changes_nothing(tmp_path):
    model = build(tmp_path).model
    state = {k: v.clone() for k, v in model.state_dict().items()}
    other = {k: v + 1 for k, v in state.items()}
    other['teacher.project.weight'] = torch.zeros(9, 48)
    other['extra'] = other.pop('student.norm.bias')
    with pytest.raises(CheckpointMismatch) as caught:
        load_weights(model, {'state_dict': other}, 'some.pth')
    text = str(caught.value)
    assert 'some.pth does not fit the ToyDistiller' in text
    assert '(9, 48) in the file, (8, 48) in the model' in text
    assert 'not in the file (first: student.norm.bias)' in text
    assert 'not in the model (first: extra)' in text
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_names_of_a_data_parallel_wrapper_fit(tmp_path):
    model = build(tmp_path).model
    state = {f'module.{k}': v + 1 for k, v in model.state_dict().items()}
    load_weights(model, state, 'some.pth')
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[f'module.{name}'])


def test_table():
    table = format_table(
        {
            'pixels': {'knn/k20_top1': 66.1},
            'trained': {'knn/k20_top1': 80.0, 'knn/k20_top5': 99.456},
        }
    )
    lines = [line.split() for line in table.splitlines()]
    assert lines == [
        ['pixels', 'trained'],
        ['knn/k20_top1', '66.10', '80.00'],
        ['knn/k20_top5', '99.46'],
    ]
    assert 'No metric' in format_table({'trained': {}})
