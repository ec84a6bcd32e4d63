"""The scripts over evaluation and analysis, run inside this process."""

import importlib.util
import json
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.runner import CheckpointLoader, Runner
from PIL import Image
from toy_features import toy_config

TOOLS = Path(__file__).resolve().parents[2] / 'tools'


def run_script(name, *arguments, monkeypatch):
    monkeypatch.setattr('sys.argv', [name, *map(str, arguments)])
    # The scripts change these for their own process.
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
    monkeypatch.setenv('LOCAL_RANK', '0')
    schemes = dict(CheckpointLoader._schemes)
    monkeypatch.setattr(CheckpointLoader, '_schemes', schemes)
    monkeypatch.setattr('sys.path', __import__('sys').path.copy())
    spec = importlib.util.spec_from_file_location(
        f'script_{name}', TOOLS / f'{name}.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A config file and the work folder of a run of it."""
    folder = tmp_path_factory.mktemp('scripts')
    config = toy_config(folder / 'run')
    Runner(**config).train()
    Config(config).dump(folder / 'toy.py')
    return folder / 'toy.py', folder / 'run'


def test_test_and_plot_curves(trained, tmp_path, monkeypatch, capsys):
    config, run = trained
    out = tmp_path / 'new' / 'results.json'
    run_script(
        'test',
        config,
        run / 'epoch_2.pth',
        '--pixels',
        '2',
        '--untrained',
        '--network=student',
        '--cfg-options',
        'val_evaluator.k=3',
        f'--json={out}',
        f'--work-dir={tmp_path}',
        monkeypatch=monkeypatch,
    )
    results = json.loads(out.read_text())
    assert results['checkpoint'] == str(run / 'epoch_2.pth')
    assert list(results['metrics']) == ['pixels', 'untrained', 'trained']
    for values in results['metrics'].values():
        assert set(values) == {'knn/k3_top1', 'knn/k3_top5'}
    assert 'knn/k3_top1' in capsys.readouterr().out

    run_script(
        'plot_curves',
        run,
        f'--results={out}',
        '--knn=knn/k3_top1',
        monkeypatch=monkeypatch,
    )
    assert capsys.readouterr().out.strip() == str(run / 'curves.png')
    assert Image.open(run / 'curves.png').width == 1320


@pytest.mark.parametrize(
    ('script', 'arguments', 'words'),
    [
        ('test', ['{config}', 'nowhere.pth'], 'CheckpointError: nowhere.pth'),
        (
            'test',
            ['{config}', 'x.pth', '--cfg-options', 'val_evaluator=None'],
            'ConfigError: The config has neither',
        ),
        ('plot_curves', ['nowhere'], 'FileNotFoundError: nowhere holds no'),
        (
            'visualize_attention',
            ['{config}', 'nowhere.pth'],
            'CheckpointError: nowhere.pth',
        ),
    ],
)
def test_errors_are_sentences(
    trained, tmp_path, monkeypatch, script, arguments, words
):
    monkeypatch.chdir(tmp_path)
    arguments = [text.format(config=trained[0]) for text in arguments]
    with pytest.raises(SystemExit) as caught:
        run_script(script, *arguments, monkeypatch=monkeypatch)
    assert str(caught.value).startswith(words)


def test_nothing_to_evaluate(trained, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_script('test', trained[0], monkeypatch=monkeypatch)
    assert 'name a checkpoint' in capsys.readouterr().err
