"""The converter's command line."""

import importlib.util
from pathlib import Path

import pytest
import torch
from toy_ibot import build_ibot

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def main():
    path = ROOT / 'tools' / 'convert_checkpoint.py'
    spec = importlib.util.spec_from_file_location('convert_checkpoint', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_it_says_what_became_of_every_key(main, tmp_path, capsys):
    source, out = tmp_path / 'run.pth', tmp_path / 'timm.pth'
    torch.save({'state_dict': build_ibot().state_dict()}, source)
    main([str(source), str(out), '--to', 'timm', '--network', 'student'])
    text = capsys.readouterr().out
    assert text.startswith(f'{out}: backbone of the student: 30 tensors')
    assert 'left out: ' in text
    assert 'mask_token' in text
    assert 'blocks.0.norm1.weight' in torch.load(out)


def test_a_problem_is_one_sentence(main, tmp_path, capsys):
    with pytest.raises(SystemExit, match='is no file on this machine'):
        main([str(tmp_path / 'none.pth'), str(tmp_path / 'x'), '--to', 'timm'])
