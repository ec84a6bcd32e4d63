"""tools/benchmarks/dataloading.py on two pictures."""

import importlib.util
import json
import logging
from pathlib import Path

import cv2
import pytest
from PIL import Image
from toy_pictures import picture

ROOT = Path(__file__).parents[3]
PARTS = {
    'read and decode',
    'crops',
    'photometric',
    'masks',
    'collate',
    'rest',
}


@pytest.fixture
def dataloading(monkeypatch):
    path = ROOT / 'tools/benchmarks/dataloading.py'
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location('dataloading', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = cv2.getNumThreads()
    yield module
    logging.disable(logging.NOTSET)
    cv2.setNumThreads(threads)


def test_a_missing_config_or_folder_is_one_sentence(dataloading):
    with pytest.raises(SystemExit, match='no config nope.py'):
        dataloading.main(['--config', 'nope.py'])
    config = str(ROOT / 'configs/ibot/ibot_demo.py')
    with pytest.raises(SystemExit, match='no folder nowhere'):
        dataloading.main(['--config', config, '--images', 'nowhere'])


def run(module, tmp_path, config, *options):
    file = tmp_path / 'figures.json'
    tiny = ['--batch-size', '2', '--rounds', '1', '--json', str(file)]
    module.main(['--config', str(config), *tiny, *options])
    return json.loads(file.read_text())


def test_figures_of_generated_pictures(dataloading, tmp_path, capsys):
    config = ROOT / 'configs/_base_/datasets/imagenet_ibot.py'
    standing_alone = tmp_path / 'config.py'
    standing_alone.write_text(f'_base_ = {str(config)!r}\nmodel = dict()\n')
    figures = run(dataloading, tmp_path, standing_alone)
    assert set(figures) == {
        'images_per_second',
        'reference_images_per_second',
        'speedup',
        'parts_ms',
    }
    assert figures['speedup'] == pytest.approx(
        figures['images_per_second'] / figures['reference_images_per_second']
    )
    assert set(figures['parts_ms']) == PARTS
    assert sum(figures['parts_ms'].values()) == pytest.approx(
        1000 / figures['images_per_second']
    )
    printed = capsys.readouterr().out
    for line in ('processor', 'torchvision', 'pillow', 'threads        1'):
        assert line in printed
    assert '2 x 224, 10 x 96' in printed and 'speedup:' in printed


def test_images_of_ones_own_and_a_config_without_masks(
    dataloading, tmp_path, capsys
):
    folder = tmp_path / 'images'
    folder.mkdir()
    for k in range(2):
        Image.fromarray(picture(40, 60, k)).save(folder / f'{k}.png')
    config = tmp_path / 'config.py'
    config.write_text(
        f'_base_ = {str(ROOT / "configs/ibot/ibot_demo.py")!r}\n'
        'train_dataloader = dict(dataset=dict(mask=None))\n'
    )
    figures = run(dataloading, tmp_path, config, '--images', str(folder))
    assert set(figures['parts_ms']) == PARTS
    assert str(folder) in capsys.readouterr().out


def test_a_config_without_views_is_refused(dataloading, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(
        "train_dataloader = dict(dataset=dict(type='CustomDataset'),\n"
        "    collate_fn=dict(type='collate_views'))\n"
    )
    with pytest.raises(SystemExit, match='is a CustomDataset'):
        run(dataloading, tmp_path, config)
