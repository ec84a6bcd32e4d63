"""A sandbox for the shell scripts: stand-ins for python and pip."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What the scripts only ask is answered at once; the rest is played.
PYTHON = """#!/bin/sh
real=$(dirname "$0")/python-real
[ -x "$real" ] || real={real}
case "$*" in
    '-c import sys; print('*) echo {version}; exit ;;
    '-m pip --version') exit ;;
    -c* | *environment.py*) exec "$real" -I "$@" ;;
esac
exec {real} -I {player} {folder} {real} "$0" "$@"
"""


class Sandbox:
    """A checkout in which nothing is installed, and a PATH of stand-ins."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.root = folder / 'checkout'
        self.bin = folder / 'bin'
        self.bin.mkdir()
        for name in ('tools', 'requirements', '.ci'):
            shutil.copytree(ROOT / name, self.root / name)
        (self.root / 'mim_plugins').mkdir()
        for name in ('setup.py', 'mim_plugins/compat.py'):
            shutil.copy(ROOT / name, self.root / name)
        version = '{}.{}'.format(*sys.version_info)
        for name in ('python3', 'python3.12', 'python3.11', 'python3.10'):
            self.put_python(self.bin / name, version)
        self.put('df', 'echo header; echo "disk 9 9 ${FREE_KB:-99999999} 9 /"')
        self.behave()

    def put(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f'#!/bin/sh\n{text}\n')
        (self.bin / name).chmod(0o755)

    def put_python(self, path: Path, version: str) -> None:
        path.write_text(
            PYTHON.format(
                real=sys.executable,
                version=version,
                player=ROOT / 'tests' / 'tools' / 'stand_in_python.py',
                folder=self.folder,
            )
        )
        path.chmod(0o755)

    def behave(self, **changes) -> None:
        usual = {'pip': 'works', 'import': 0, 'exit': {}}
        path = self.folder / 'behaviour.json'
        path.write_text(json.dumps({**usual, **changes}))

    def environment(self, **more) -> dict:
        names = ('VIRTUAL_ENV', 'CONDA_PREFIX', 'CXX', 'MIM_PYTHON')
        clean = {k: v for k, v in os.environ.items() if k not in names}
        clean['PATH'] = f'{self.bin}:/usr/bin:/bin'
        clean['MIM_CACHE'] = str(self.folder / 'cache')
        return {**clean, **{k: str(v) for k, v in more.items()}}

    def command(self, script: str, *arguments) -> list[str]:
        if script in ('pretrain', 'test'):
            source = f'set -euo pipefail; source {self.root}/tools/setup.sh'
            return ['bash', '-c', f'{source}; prepare_environment {script}']
        return ['bash', str(self.root / script), *arguments]

    def run(self, script: str, *arguments, **environment):
        """Run a script, or the set-up alone: 'pretrain' or 'test'."""
        return subprocess.run(
            self.command(script, *arguments),
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=300,
        )

    def calls(self) -> list[dict]:
        """What was started since the last time this was asked."""
        path = self.folder / 'calls'
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        path.unlink()
        return [json.loads(line) for line in lines]

    def started(self) -> list[str]:
        """The first words of each call."""
        return [' '.join(c['arguments'][:2]) for c in self.calls()]

    @property
    def state(self) -> Path:
        return self.root / '.venv' / '.mim_plugins'

    def own_environment(self, *installed: str) -> Path:
        """An environment of the user's, with distributions name==version."""
        target = self.folder / 'mine'
        subprocess.check_call([self.bin / 'python3', '-m', 'venv', target])
        self.calls()
        for text in installed:
            self.install(target, text)
        return target

    def install(self, environment: Path, text: str, finished=True) -> Path:
        name, _, version = text.partition('==')
        (site,) = environment.glob('lib/python3*/site-packages')
        info = site / f'{name.replace("-", "_")}-{version}.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text(f'Name: {name}\nVersion: {version}\n')
        if finished:
            (info / 'RECORD').write_text(f'{info.name}/METADATA,,\n')
        return info


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)
