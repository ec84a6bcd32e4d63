"""The benchmark of a step runs, and says what it says it does."""

import argparse
import importlib.util
import json
import logging
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).resolve().parents[3] / 'tools' / 'benchmarks'

CONFIG = """
_base_ = '{base}'
model = dict(
    student=dict(
        arch=dict(_delete_=True, embed_dims=12, num_layers=2, num_heads=2,
                  feedforward_channels=16), img_size=32, patch_size=8),
    head=dict(out_dim=10, hidden_dim=14, bottleneck_dim=8))
train_dataloader = dict(
    dataset=dict(
        views=dict(global1=dict(size=32), global2=dict(size=32),
                   local=dict(size=16, num=2)),
        mask=dict(patch_size=8, ratio=0.4, variance=0)))
"""


@pytest.fixture(scope='module')
def script():
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location(
        'train_step', TOOLS / 'train_step.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))
    logging.disable(logging.NOTSET)


@pytest.fixture
def config(tmp_path):
    base = TOOLS.parents[1] / 'configs' / 'ibot'
    name = 'ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py'
    path = tmp_path / 'toy.py'
    path.write_text(CONFIG.format(base=base / name))
    return str(path)


def test_figures_are_written(script, config, tmp_path, monkeypatch, capsys):
    def here(args: argparse.Namespace, name: str) -> dict:
        command = ['--config', config, '--batch-size', '2']
        script.main([*command, '--memory-of', name])
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    monkeypatch.setattr(script, 'in_fresh_process', here)
    monkeypatch.setattr(script, 'supports_fast_bf16', lambda device: False)
    file = tmp_path / 'figures.json'
    command = ['--config', config, '--batch-size', '2', '--rounds', '1']
    script.main([*command, '--reference', '--json', str(file)])
    figures = json.loads(file.read_text())
    assert figures['bfloat16'] == 'not applicable'
    ours, reference = figures['float32'], figures['reference']
    assert ours['speedup'] == reference['seconds'] / ours['seconds']
    ratios = ours['memory_ratios']
    assert ours['memory_ratio'] == max(ratios.values())
    for key, ratio in ratios.items():
        assert ratio == ours[key] / reference[key]
    assert 0 < ratios['saved_bytes'] < 1
    assert 0 < ours['peak_share'] < 1
    out = capsys.readouterr().out
    assert 'x the speed of the reference' in out


def test_saved_bytes_are_those_of_the_backward_pass(script):
    weight = torch.nn.Parameter(torch.randn(4, 4))
    x = torch.randn(8, 4)

    def step():
        hidden = x @ weight  # keeps x and the weight
        return hidden.sigmoid()  # keeps its output

    assert script.saved_bytes(step) == (8 * 4 + 8 * 4) * 4


def test_both_steps_start_from_the_same_model(script, config):
    from mmengine.config import Config

    cfg = Config.fromfile(config)
    first, second = (script.build_model(cfg).state_dict() for _ in range(2))
    assert all(torch.equal(first[k], second[k]) for k in first)
    batches = [script.random_batch(cfg, 2)['inputs'] for _ in range(2)]
    assert torch.equal(*(b['views']['local'] for b in batches))
    assert batches[0]['num_views'] == {'global': 2, 'local': 2}
    assert batches[0]['masks']['global']['count'] > 0
