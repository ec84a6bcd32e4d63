"""Plays python for the scripts under test: pip, venv, pytest and the tools.

    python stand_in_python.py FOLDER REAL SELF ARGUMENTS ...

Called by the ``python`` that ``test_scripts.py`` puts in the scripts' way.
It writes down each call in FOLDER/calls and behaves as FOLDER/behaviour.json
says. What pip "installs" is a folder of metadata, enough for the questions
that the scripts ask.
"""

import json
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

FOLDER, REAL, SELF = (Path(text) for text in sys.argv[1:4])
ARGUMENTS = sys.argv[4:]
BEHAVIOUR = json.loads((FOLDER / 'behaviour.json').read_text())


def record(**more):
    line = json.dumps(dict(python=str(SELF), arguments=ARGUMENTS, **more))
    with open(FOLDER / 'calls', 'a') as calls:
        calls.write(f'{line}\n')


def make_environment(target: Path) -> None:
    """A real environment whose python is the stand-in."""
    record()
    command = [REAL, '-I', '-m', 'venv', '--without-pip', target]
    subprocess.check_call(command)
    python = target / 'bin' / 'python'
    python.rename(python.with_name('python-real'))
    python.write_text(SELF.read_text())
    python.chmod(0o755)


def site_packages() -> Path:
    if '--target' in ARGUMENTS:
        return Path(option('--target'))
    (found,) = SELF.parent.parent.glob('lib/python3*/site-packages')
    return found


def put(name: str, version: str, finished: bool = True) -> None:
    info = site_packages() / f'{name.replace("-", "_")}-{version}.dist-info'
    info.mkdir(exist_ok=True)
    (info / 'METADATA').write_text(f'Name: {name}\nVersion: {version}\n')
    if finished:
        (info / 'RECORD').write_text(f'{info.name}/METADATA,,\n')


def option(name: str) -> str:
    return ARGUMENTS[ARGUMENTS.index(name) + 1]


def lines_of(name: str) -> list[str]:
    if name not in ARGUMENTS:
        return []
    return Path(option(name)).read_text().split()


def pip_wheel() -> None:
    compiler = os.environ.get('CXX', '')
    with_ops = '--no-build-isolation' in ARGUMENTS
    record(compiler=Path(compiler).read_text() if with_ops else '')
    wheel = Path(option('--wheel-dir')) / 'onedl_mmcv-2.3.6-py3-none-any.whl'
    with zipfile.ZipFile(wheel, 'w') as archive:
        archive.writestr('mmcv/__init__.py', '')
        if with_ops and BEHAVIOUR['pip'] != 'no operators':
            archive.writestr('mmcv/_ext.so', '')


def pip_install() -> None:
    log = Path(option('--log'))
    log.write_text('Installing collected packages: some\n')
    wanted, pins = lines_of('-r'), lines_of('-c')
    record(wanted=wanted, pins=pins)
    if BEHAVIOUR['pip'] == 'sleeps':
        (FOLDER / 'asleep').touch()
        time.sleep(60)
    if BEHAVIOUR['pip'] == 'full disk':
        log.write_text(f'{log.read_text()}[Errno 28] No space left on device')
        sys.exit(1)
    if BEHAVIOUR['pip'] == 'breaks off':
        put('half_done', '1.0', finished=False)
        sys.exit(1)
    pinned = dict(pin.split('==') for pin in pins)
    for requirement in wanted:
        name, oldest = re.match(
            r'([\w-]+)(?:[>=]=([\d.]+))?', requirement
        ).groups()
        put(name, pinned.get(name, oldest or '1.0'))
    if '--editable' in ARGUMENTS:
        put('mim_plugins', '0.1.0')
    for path in (a for a in ARGUMENTS if a.endswith('.whl')):
        put('onedl-mmcv', '2.3.6')
        zipfile.ZipFile(path).extractall(site_packages())


def pip() -> None:
    if BEHAVIOUR['pip'] == 'no network':
        record()
        Path(option('--log')).write_text('NewConnectionError: no route')
        sys.exit(1)
    pip_wheel() if 'wheel' in ARGUMENTS else pip_install()


def main() -> None:
    if ARGUMENTS[:2] == ['-m', 'venv']:
        make_environment(Path(ARGUMENTS[2]))
    elif ARGUMENTS[:2] == ['-m', 'pip']:
        pip()
    elif ARGUMENTS[:2] == ['-W', 'ignore']:
        record()
        sys.exit(BEHAVIOUR['import'])  # a text is printed, and means failure
    else:
        names = ('MIM_STARTED', 'OMP_NUM_THREADS', 'OMP_WAIT_POLICY')
        names += ('VIRTUAL_ENV',)
        record(environment={name: os.environ.get(name) for name in names})
        sys.exit(BEHAVIOUR['exit'].get(ARGUMENTS[1], 0))


main()
