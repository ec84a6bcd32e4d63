"""tools/setup.sh and tools/setup/: what is installed, and when."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest


def asked_for(calls: list[dict]) -> set[str]:
    """Names of the distributions that pip was asked to install."""
    wanted = [line for call in calls for line in call.get('wanted', [])]
    return {line.split('>')[0].split('=')[0] for line in wanted}


class TestEnvironment:
    def test_first_run_installs_and_second_run_does_nothing(self, sandbox):
        first = sandbox.run('pretrain')
        assert first.returncode == 0, first.stderr
        calls = sandbox.calls()
        assert {'torch', 'onedl-mmpretrain', 'numpy'} <= asked_for(calls)
        assert 'onedl-mmdetection' not in asked_for(calls)
        assert (sandbox.state / 'pretrain').exists()
        assert not (sandbox.state / 'installing').exists()

        second = sandbox.run('pretrain')
        assert second.returncode == 0, second.stderr
        assert sandbox.calls() == []

    @pytest.mark.parametrize(
        'change',
        [
            'requirements/runtime.txt',
            'requirements/tested.txt',
            'tools/setup/mmcv.sh',
        ],
    )
    def test_changed_files_set_it_up_again(self, sandbox, change):
        sandbox.run('pretrain')
        sandbox.calls()
        with open(sandbox.root / change, 'a') as file:
            file.write('\n# changed\n')
        assert sandbox.run('pretrain').returncode == 0
        assert '-m venv' not in (started := sandbox.started())
        assert '-m pip' in started

    def test_removed_library_is_installed_again(self, sandbox):
        sandbox.run('pretrain')
        sandbox.calls()
        (torch,) = sandbox.root.glob('.venv/lib/*/*/torch-*.dist-info')
        shutil.rmtree(torch)
        assert sandbox.run('pretrain').returncode == 0
        assert 'torch' in asked_for(sandbox.calls())
        assert torch.exists()

    def test_default_releases_are_pinned(self, sandbox):
        sandbox.run('pretrain')
        pins = [c['pins'] for c in sandbox.calls() if c.get('wanted')]
        tested = (sandbox.root / 'requirements/tested.txt').read_text()
        assert all('torch==' in ' '.join(p) for p in pins)
        assert all(pin in tested for p in pins for pin in p)

    def test_no_supported_python(self, sandbox):
        sandbox.put_python(sandbox.bin / 'python3', '3.13')
        sandbox.put_python(sandbox.bin / 'python3.12', '3.9')
        for name in ('python3.11', 'python3.10'):
            sandbox.put(name, 'exit 127')
        result = sandbox.run('tools/demo.sh')
        assert result.returncode == 1
        assert 'Python 3.10, 3.11 or 3.12 is needed' in result.stderr
        assert 'python3 is 3.13' in result.stderr
        assert not (sandbox.root / '.venv').exists()
        assert sandbox.calls() == []

    def test_next_python_is_taken_where_the_first_does_not_serve(
        self, sandbox
    ):
        sandbox.put_python(sandbox.bin / 'python3', '3.13')
        assert sandbox.run('pretrain').returncode == 0
        assert sandbox.calls()[0]['python'].endswith('/python3.12')

    def test_named_python_replaces_another_version(self, sandbox):
        sandbox.put_python(sandbox.bin / 'python3.10', '3.10')
        sandbox.put_python(sandbox.bin / 'python3', '3.12')
        sandbox.run('pretrain')
        result = sandbox.run('pretrain', MIM_PYTHON='python3.10')
        assert 'afresh: MIM_PYTHON' in result.stdout
        made = [c for c in sandbox.calls() if c['arguments'][1] == 'venv']
        assert [Path(c['python']).name for c in made] == [
            'python3',
            'python3.10',
        ]

    def test_full_disk_is_seen_before_anything_is_made(self, sandbox):
        result = sandbox.run('pretrain', FREE_KB=2048 * 1024)
        assert result.returncode == 1
        assert 'not enough disk space' in result.stderr
        assert '2048 MB are free' in result.stderr
        assert not (sandbox.root / '.venv').exists()
        assert sandbox.calls() == []

    def test_no_network_leaves_nothing_to_mend(self, sandbox):
        sandbox.behave(pip='no network')
        result = sandbox.run('pretrain')
        assert result.returncode == 1
        assert 'could not reach the package index' in result.stderr
        assert not (sandbox.state / 'pretrain').exists()

        sandbox.behave()
        sandbox.calls()
        assert sandbox.run('pretrain').returncode == 0
        assert '-m venv' not in sandbox.started()

    def test_installation_that_broke_off_starts_afresh(self, sandbox):
        sandbox.behave(pip='full disk')
        result = sandbox.run('pretrain')
        assert result.returncode == 1
        assert 'the disk is full' in result.stderr
        assert (sandbox.state / 'installing').exists()
        left_over = sandbox.root / '.venv' / 'left_over'
        left_over.touch()

        sandbox.behave()
        result = sandbox.run('pretrain')
        assert result.returncode == 0, result.stderr
        assert 'afresh: an earlier set-up broke off' in result.stdout
        assert not left_over.exists()

    def test_interruption_starts_afresh(self, sandbox):
        sandbox.behave(pip='sleeps')
        process = subprocess.Popen(
            sandbox.command('pretrain'),
            env=sandbox.environment(),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # pytest may have been started with the signal ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        deadline = time.monotonic() + 120
        while not (sandbox.folder / 'asleep').exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130
        assert 'Interrupted' in error

        sandbox.behave()
        assert 'afresh' in sandbox.run('pretrain').stdout

    def test_failed_import_is_said_and_not_trusted(self, sandbox):
        sandbox.behave(**{'import': 'ImportError: libGL.so.1: no such file'})
        result = sandbox.run('pretrain')
        assert result.returncode == 1
        assert 'apt-get install libgl1' in result.stderr
        assert not (sandbox.state / 'pretrain').exists()

    def test_cache_that_cannot_be_written(self, sandbox):
        (sandbox.folder / 'file').touch()
        cache = sandbox.folder / 'file' / 'cache'
        result = sandbox.run('pretrain', MIM_CACHE=cache)
        assert result.returncode == 1
        assert 'Set MIM_CACHE' in result.stderr


class TestOwnEnvironment:
    def test_what_is_there_stays(self, sandbox):
        mine = sandbox.own_environment(
            'torch==2.9.0', 'mmengine==0.10.7', 'mmcv==2.2.0'
        )
        result = sandbox.run('pretrain', VIRTUAL_ENV=mine)
        assert result.returncode == 0, result.stderr
        assert not (sandbox.root / '.venv').exists()
        calls = sandbox.calls()
        assert {'torch', 'onedl-mmengine', 'onedl-mmcv'}.isdisjoint(
            asked_for(calls)
        )
        assert {'torchvision', 'onedl-mmpretrain'} <= asked_for(calls)
        pins = [pin for call in calls for pin in call.get('pins', [])]
        assert 'torch==2.9.0' in pins
        # any release that fits the torch that is there
        assert not [pin for pin in pins if pin.startswith('torchvision')]

    def test_conda_base_is_not_used(self, sandbox):
        mine = sandbox.own_environment()
        conda = {'CONDA_PREFIX': mine, 'CONDA_DEFAULT_ENV': 'base'}
        assert sandbox.run('pretrain', **conda).returncode == 0
        assert (sandbox.root / '.venv').exists()
        assert not (mine / '.mim_plugins').exists()

    def test_conda_environment_is_used(self, sandbox):
        mine = sandbox.own_environment()
        conda = {'CONDA_PREFIX': mine, 'CONDA_DEFAULT_ENV': 'work'}
        assert sandbox.run('pretrain', **conda).returncode == 0
        assert (mine / '.mim_plugins' / 'pretrain').exists()
        assert not (sandbox.root / '.venv').exists()

    def test_unsupported_python(self, sandbox):
        mine = sandbox.own_environment()
        sandbox.put_python(mine / 'bin' / 'python', '3.9')
        result = sandbox.run('pretrain', VIRTUAL_ENV=mine)
        assert result.returncode == 1
        assert f'{mine} has Python 3.9' in result.stderr
        assert sandbox.calls() == []

    @pytest.mark.parametrize('place', ['active', '.venv'])
    def test_is_never_removed_when_a_set_up_broke_off(self, sandbox, place):
        mine = sandbox.own_environment('numpy==2.0')
        where = {'VIRTUAL_ENV': mine}
        if place == '.venv':
            mine = mine.rename(sandbox.root / '.venv')
            where = {}
        sandbox.behave(pip='breaks off')
        assert sandbox.run('pretrain', **where).returncode == 1
        (half,) = mine.glob('lib/*/*/half_done-*')
        old = sandbox.install(mine, 'older==1.0', finished=False)
        os.utime(old, (0, 0))

        sandbox.behave()
        result = sandbox.run('pretrain', **where)
        assert result.returncode == 0, result.stderr
        assert not half.exists()  # pip takes it for missing
        assert old.exists()  # not of that set-up
        assert list(mine.glob('lib/*/*/numpy-*'))


class TestOperators:
    def test_missing_compiler_is_seen_before_pip(self, sandbox):
        result = sandbox.run('tools/test.sh', CXX='no-such-compiler')
        assert result.returncode == 1
        assert 'no C++ compiler was found (no-such-compiler)' in result.stderr
        assert '-m pip' not in sandbox.started()

    def test_pre_training_needs_no_compiler(self, sandbox):
        result = sandbox.run('pretrain', CXX='no-such-compiler')
        assert result.returncode == 0, result.stderr

    def test_old_compiler(self, sandbox):
        sandbox.put('old-c++', 'exit 1')
        result = sandbox.run('test', CXX='old-c++')
        assert result.returncode == 1
        assert 'does not take -std=c++20' in result.stderr

    @pytest.mark.parametrize(
        'torch, standard', [('2.9.1', 'c++17'), ('2.10.0', 'c++20')]
    )
    def test_compiled_once_for_a_torch(self, sandbox, torch, standard):
        mine = sandbox.own_environment(f'torch=={torch}')
        sandbox.put('my-c++', 'exit 0')
        with_compiler = {'VIRTUAL_ENV': mine, 'CXX': 'my-c++'}
        result = sandbox.run('test', **with_compiler)
        if 'headers are missing' in result.stderr:
            pytest.skip("Python's headers are not installed")
        assert result.returncode == 0, result.stderr
        (build,) = [c for c in sandbox.calls() if 'wheel' in c['arguments']]
        assert build['compiler'].endswith(
            f'exec my-c++ "$@" -std={standard}\n'
        )

        # Another environment with this torch takes the wheel that is kept.
        (mine / '.mim_plugins' / 'test').unlink()
        for path in mine.glob('lib/*/*/onedl_mmcv-*'):
            shutil.rmtree(path)
        (ext,) = mine.glob('lib/*/*/mmcv/_ext.so')
        ext.unlink()
        assert sandbox.run('test', **with_compiler).returncode == 0
        assert ext.exists()
        assert not [c for c in sandbox.calls() if 'wheel' in c['arguments']]

    def test_replaces_an_mmcv_without_operators(self, sandbox):
        sandbox.put('my-c++', 'exit 0')
        sandbox.run('pretrain')
        result = sandbox.run('test', CXX='my-c++')
        if 'headers are missing' in result.stderr:
            pytest.skip("Python's headers are not installed")
        assert result.returncode == 0, result.stderr
        assert list(sandbox.root.glob('.venv/lib/*/*/mmcv/_ext.so'))
        sandbox.calls()
        assert sandbox.run('pretrain').returncode == 0
        assert sandbox.calls() == []  # it serves pre-training too

    def test_build_without_operators_is_not_kept(self, sandbox):
        sandbox.put('my-c++', 'exit 0')
        sandbox.behave(pip='no operators')
        result = sandbox.run('test', CXX='my-c++')
        if 'headers are missing' in result.stderr:
            pytest.skip("Python's headers are not installed")
        assert result.returncode == 1
        assert 'without its operators' in result.stderr
        assert not list(sandbox.folder.glob('cache/wheels/*ops*/*.whl'))

    def test_upstream_without_operators_is_refused(self, sandbox):
        mine = sandbox.own_environment('torch==2.9.0', 'mmcv==2.2.0')
        sandbox.put('my-c++', 'exit 0')
        result = sandbox.run('test', VIRTUAL_ENV=mine, CXX='my-c++')
        if 'headers are missing' in result.stderr:
            pytest.skip("Python's headers are not installed")
        assert result.returncode == 1
        assert 'has no compiled operators' in result.stderr
