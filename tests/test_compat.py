"""Checks of the libraries underneath, and the patches."""

import subprocess
import sys
import warnings
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from mim_plugins import compat

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = compat.Library('thing', ('fork-thing', 'thing'), '1.2.0', '1.4.2')


def requirement_lines(name):
    lines = (ROOT / 'requirements' / f'{name}.txt').read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


@pytest.fixture
def installed(monkeypatch):
    """A dict of what pip knows, to be filled by the test."""
    known = {}

    def version(name):
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(compat, 'version', version)
    return known


class TestVersions:
    def test_missing(self, installed):
        with pytest.raises(ImportError) as error:
            compat.check_versions((LIBRARY,))
        assert str(error.value).splitlines() == [
            'mim_plugins cannot be imported:',
            '  thing is not installed. '
            "Run: pip install 'fork-thing>=1.2.0,<1.5'",
        ]

    def test_missing_but_optional(self, installed):
        compat.check_versions((LIBRARY._replace(required=False),))

    @pytest.mark.parametrize('name', ['fork-thing', 'thing'])
    @pytest.mark.parametrize('version', ['1.2.0', '1.3', '1.4.2+cpu', '1.4.9'])
    def test_fork_and_upstream_serve(self, installed, name, version):
        installed[name] = version
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            compat.check_versions((LIBRARY,))

    @pytest.mark.parametrize('required', [True, False])
    def test_too_old(self, installed, required):
        installed['thing'] = '1.1.9'
        with pytest.raises(ImportError) as error:
            compat.check_versions((LIBRARY._replace(required=required),))
        assert 'thing 1.1.9 is too old: 1.2.0 to 1.4.2 are tested' in str(
            error.value
        )

    def test_newer_than_tested_is_a_warning(self, installed):
        installed['fork-thing'] = '1.5.0'
        with pytest.warns(compat.UntestedVersion) as caught:
            compat.check_versions((LIBRARY,))
        (warning,) = caught
        assert 'fork-thing 1.5.0 is newer than any' in str(warning.message)

    def test_fork_over_upstream(self, installed):
        installed.update({'fork-thing': '1.4.2', 'thing': '1.4.0'})
        with pytest.raises(ImportError) as error:
            compat.check_versions((LIBRARY,))
        assert 'pip uninstall -y fork-thing thing' in str(error.value)

    def test_every_fault_has_its_line(self, installed):
        installed['other'] = '0.1'
        other = LIBRARY._replace(module='other', distributions=('other',))
        with pytest.raises(ImportError) as error:
            compat.check_versions((LIBRARY, other))
        assert len(str(error.value).splitlines()) == 3

    def test_library_without_metadata(self, installed, tmp_path, monkeypatch):
        (tmp_path / 'thing.py').write_text("__version__ = '1.1.0'")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ImportError, match=r'thing 1.1.0 is too old'):
            compat.check_versions((LIBRARY,))

    def test_what_is_installed_here_serves(self):
        compat.check_versions()

    @pytest.mark.parametrize(
        'text, numbers',
        [
            ('2.14.1', (2, 14, 1)),
            ('2.14.1+cpu', (2, 14, 1)),
            ('2.15.0a0+git1', (2, 15, 0)),
            ('1.3.2.post2', (1, 3, 2)),
        ],
    )
    def test_release(self, text, numbers):
        assert compat.release(text) == numbers

    def test_release_of_nonsense(self):
        with pytest.raises(ValueError, match="'main' is not a version"):
            compat.release('main')


def test_requirements_say_what_is_checked():
    names = ('torch', 'mm', 'downstream')
    written = [line for name in names for line in requirement_lines(name)]
    assert written == [lib.requirement for lib in compat.LIBRARIES]


def test_newest_tested_is_what_the_scripts_install():
    pins = dict(p.split('==') for p in requirement_lines('tested'))
    for library in compat.LIBRARIES:
        assert pins[library.distributions[0]] == library.newest


def test_compat_needs_the_standard_library_alone():
    """The set-up scripts read its table before anything is installed."""
    code = f'import runpy; runpy.run_path({str(ROOT / "mim_plugins")!r}'
    code += ' + "/compat.py")'
    subprocess.run([sys.executable, '-I', '-S', '-c', code], check=True)


class TestConfigNames:
    @pytest.fixture
    def table(self, monkeypatch):
        """mmengine's own table, as it is without the patch."""
        from mmengine.config.utils import MODULE2PACKAGE

        monkeypatch.delitem(MODULE2PACKAGE, 'mim_plugins', raising=False)
        monkeypatch.setitem(MODULE2PACKAGE, 'mmseg', 'mmsegmentation')
        return MODULE2PACKAGE

    @pytest.fixture
    def config(self, tmp_path):
        path = tmp_path / 'config.py'
        path.write_text("_base_ = ['mmseg::_base_/schedules/schedule_20k.py']")
        return path

    def test_base_of_the_fork_is_found(self, table, config):
        from mmengine.config import Config

        if not compat.installed(compat.LIBRARIES[5]).get(
            'onedl-mmsegmentation'
        ):
            pytest.skip("mmsegmentation's fork is not installed")
        # The day this raises no more, the patch for the forks can go.
        with pytest.raises(Exception, match='mmsegmentation'):
            Config.fromfile(config)
        compat.apply_patches()
        assert Config.fromfile(config).train_cfg.max_iters == 20000

    def test_base_of_mmpretrain_is_found(self, table, config):
        from mmengine.config import Config

        compat.apply_patches()
        config.write_text("_base_ = ['mmpretrain::_base_/default_runtime.py']")
        assert Config.fromfile(config).default_scope == 'mmpretrain'

    def test_upstream_keeps_its_name(self, table, installed):
        installed['mmsegmentation'] = '1.2.2'
        before = dict(table)
        compat.apply_patches()
        assert table == {**before, 'mim_plugins': 'mim_plugins'}

    def test_libraries_that_are_missing_keep_theirs(self, table, monkeypatch):
        monkeypatch.setattr(compat, 'installed', lambda library: {})
        before = dict(table)
        compat.apply_patches()
        compat.apply_patches()
        assert table == {**before, 'mim_plugins': 'mim_plugins'}


class Malicious:
    """Unpickling it makes a file, as other code could be run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), 'w')


class TestCheckpoints:
    @pytest.fixture(autouse=True)
    def patched(self, safe_reading, monkeypatch):
        # Not needed by our loader, and what our tools set.
        monkeypatch.delenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', raising=False)

    def test_history_of_the_log_is_read(self, tmp_path):
        import torch
        from mmengine.logging import HistoryBuffer
        from mmengine.runner import load_checkpoint

        history = HistoryBuffer([1.0, 3.0], [1, 1])
        hub = {'log_scalars': {'train/loss': history}}
        model = torch.nn.Linear(2, 1)
        path = tmp_path / 'epoch_1.pth'
        torch.save(
            {'state_dict': model.state_dict(), 'message_hub': hub}, path
        )
        other = torch.nn.Linear(2, 1)
        read = load_checkpoint(other, str(path))
        assert torch.equal(other.weight, model.weight)
        assert read['message_hub']['log_scalars']['train/loss'].mean() == 2

    def test_code_is_not_run(self, tmp_path):
        import torch
        from mmengine.runner import CheckpointLoader

        from mim_plugins.checkpoints import UnsafeCheckpoint

        made = tmp_path / 'made'
        torch.save({'state_dict': Malicious(made)}, tmp_path / 'bad.pth')
        with pytest.raises(UnsafeCheckpoint):
            CheckpointLoader.load_checkpoint(str(tmp_path / 'bad.pth'))
        assert not made.exists()
