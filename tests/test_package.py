"""What ``pip install .`` installs."""

import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """A wheel of a copy of the checkout."""
    copy = tmp_path_factory.mktemp('package') / 'checkout'
    ignored = shutil.ignore_patterns(
        '.git', '.venv', 'data', 'work_dirs', '.mim', 'build', '*.egg-info'
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    (copy / 'tools' / '__pycache__').mkdir(exist_ok=True)
    (copy / 'tools' / '__pycache__' / 'train.pyc').touch()
    subprocess.run(
        [sys.executable, 'setup.py', '-q', 'bdist_wheel'],
        cwd=copy,
        check=True,
    )
    (path,) = copy.glob('dist/*.whl')
    with zipfile.ZipFile(path) as archive:
        yield archive


def metadata(wheel, name):
    (path,) = [n for n in wheel.namelist() if n.endswith(f'info/{name}')]
    return wheel.read(path).decode()


def test_only_the_package_is_installed(wheel):
    """No top-level ``tests`` or ``tools`` that others would import."""
    top = {name.split('/')[0] for name in wheel.namelist()}
    assert top == {'mim_plugins', metadata_folder(wheel)}
    for folder in ('datasets', 'models/heads', 'engine', 'checkpoints'):
        assert any(
            name.startswith(f'mim_plugins/{folder}/')
            for name in wheel.namelist()
        )


def metadata_folder(wheel):
    (path,) = [n for n in wheel.namelist() if n.endswith('info/METADATA')]
    return path.split('/')[0]


def test_configs_tools_and_index_are_inside(wheel):
    names = set(wheel.namelist())
    for folder in ('configs', 'tools'):
        files = [p for p in (ROOT / folder).rglob('*') if p.is_file()]
        expected = {
            f'mim_plugins/.mim/{path.relative_to(ROOT).as_posix()}'
            for path in files
            if path.suffix != '.pyc'
        }
        assert expected and expected <= names
    assert 'mim_plugins/.mim/model-index.yml' in names
    assert not [name for name in names if '__pycache__' in name]


def test_torch_and_the_mm_libraries_come_by_extras_alone(wheel):
    message = Parser().parsestr(metadata(wheel, 'METADATA'))
    requirements = message.get_all('Requires-Dist')
    plain = [r for r in requirements if 'extra' not in r]
    assert plain and not [r for r in plain if 'torch' in r or 'mm' in r]
    extras = set(message.get_all('Provides-Extra'))
    assert extras == {'torch', 'mm', 'downstream', 'huggingface', 'test'}
    assert [r for r in requirements if r.startswith('onedl-mmpretrain')]


def test_hooks_use_the_ruff_of_the_tests():
    """Two releases of a formatter would undo each other's work."""
    pins = (ROOT / 'requirements' / 'tested.txt').read_text().split()
    (ruff,) = [pin for pin in pins if pin.startswith('ruff==')]
    hooks = (ROOT / '.pre-commit-config.yaml').read_text()
    assert set(re.findall(r'ruff==[\d.]+', hooks)) == {ruff}
