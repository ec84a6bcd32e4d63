"""What a Python environment holds: questions that ``setup.sh`` asks.

    python environment.py wanted [--keep] FILE ...   lines for pip
    python environment.py constraints [--keep]       pins for pip
    python environment.py key FILE ...               the state, as a hash
    python environment.py version|pin DISTRIBUTION
    python environment.py ops [WHEEL]                'yes' or nothing
    python environment.py forget MARKER              unfinished ones
    python environment.py share FOLDER               links, for upstream.sh

FILE is a name in ``requirements/``. Runs before anything is installed, so it
needs the standard library alone. ``--keep`` is for an environment that is
the user's own: what is there stays.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import platform
import re
import shutil
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load_compat():
    """``mim_plugins/compat.py`` alone, without importing the package."""
    path = ROOT / 'mim_plugins' / 'compat.py'
    spec = importlib.util.spec_from_file_location('compat', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules['compat'] = module
    spec.loader.exec_module(module)
    return module


def version(distribution: str) -> str:
    """Installed version, or an empty string."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ''


def lines(name: str) -> list[str]:
    """Lines of ``requirements/<name>.txt`` without comments."""
    text = (ROOT / 'requirements' / f'{name}.txt').read_text()
    stripped = [line.split('#')[0].strip() for line in text.splitlines()]
    return [line for line in stripped if line]


def distribution_of(requirement: str) -> str:
    """``'torch>=2.4,<2.15'`` gives ``'torch'``."""
    return re.match(r'[\w.-]+', requirement).group()


def aliases() -> dict[str, tuple[str, ...]]:
    """Names under which a library may be there, by the one to install."""
    libraries = load_compat().LIBRARIES
    return {lib.distributions[0]: lib.distributions for lib in libraries}


def wanted(files: list[str], keep: bool) -> list[str]:
    """Requirements for pip; with ``keep``, only of what is not there.

    Upstream's mmcv counts as mmcv: the fork over it would mix the two.
    """
    names = aliases()
    result = []
    for requirement in [line for name in files for line in lines(name)]:
        name = distribution_of(requirement)
        present = any(version(alias) for alias in names.get(name, ()))
        if not (keep and present):
            result.append(requirement)
    return result


def constraints(keep: bool) -> list[str]:
    """Pins of ``tested.txt``; with ``keep``, what is installed goes first."""
    result = []
    for pin in lines('tested'):
        name = distribution_of(pin)
        there = version(name) if keep else ''
        if there:
            result.append(f'{name}=={there}')
        elif name == 'torchvision' and keep and version('torch'):
            continue  # pip finds the release that fits this torch
        else:
            result.append(pin)
    return result


def pinned(name: str) -> str:
    """The release that ``tested.txt`` names."""
    pins = dict(pin.split('==') for pin in lines('tested'))
    return pins[name]


def has_ops(wheel: str | None = None) -> bool:
    """Whether a wheel, or the installed mmcv, has compiled operators."""
    if wheel is not None:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        return any(name.startswith('mmcv/_ext.') for name in names)
    folder = Path(sysconfig.get_paths()['platlib']) / 'mmcv'
    return any(folder.glob('_ext.*'))


def key(files: list[str]) -> str:
    """A hash of all that decides whether the set-up must run again."""
    digest = hashlib.sha256()
    paths = [ROOT / 'requirements' / f'{name}.txt' for name in files]
    paths += [ROOT / 'requirements' / 'tested.txt', ROOT / 'setup.py']
    paths += [ROOT / 'tools' / 'setup.sh']
    paths += sorted((ROOT / 'tools' / 'setup').glob('*.*'))
    for path in paths:
        digest.update(path.read_bytes())
    names = aliases()
    facts = [str(ROOT), platform.python_version(), version('mim_plugins')]
    for requirement in [line for name in files for line in lines(name)]:
        name = distribution_of(requirement)
        if name in names:
            facts += [version(alias) for alias in names[name]]
        else:
            facts.append(f'{name} {bool(version(name))}')
    if 'downstream' in files:
        facts.append(f'ops {has_ops()}')
    if 'upstream' in files:
        facts += [str(path) for path in shared()]
    digest.update('\n'.join(facts).encode())
    return digest.hexdigest()


def forget(marker: str) -> list[str]:
    """Let pip take a distribution that it did not finish for missing.

    Only those written since the file ``marker`` count. pip writes the list
    of a distribution's files last: one that broke off has no list, or lacks
    files of it.
    """
    result = []
    start = Path(marker).stat().st_mtime
    folder = Path(sysconfig.get_paths()['platlib'])
    for info in sorted(folder.glob('*.dist-info')):
        if info.stat().st_mtime < start:
            continue
        dist = metadata.Distribution.at(info)
        files = dist.files
        if files is None or not all(f.locate().exists() for f in files):
            shutil.rmtree(info)
            result.append(info.stem)
    return result


def shared() -> list[Path]:
    """All that is installed, the mm libraries and their metadata apart."""
    libraries = [
        library
        for library in load_compat().LIBRARIES
        if library.module not in ('torch', 'torchvision')
    ]
    names = [name for library in libraries for name in library.distributions]
    result = {}
    for folder in map(Path, sys.path):
        if folder.name not in ('site-packages', 'dist-packages'):
            continue  # the standard library
        skipped = {'__pycache__', *(library.module for library in libraries)}
        for dist in metadata.distributions(path=[str(folder)]):
            if str(dist.metadata['Name']).lower().replace('_', '-') in names:
                skipped |= {file.parts[0] for file in dist.files or ()}
        for path in sorted(folder.iterdir()):
            if path.name not in skipped:
                result.setdefault(path.name, path)
    return list(result.values())


def share(folder: Path) -> None:
    """Link what is shared into a folder; what it has already stays."""
    for path in shared():
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('question')
    parser.add_argument('names', nargs='*')
    parser.add_argument('--keep', action='store_true')
    args = parser.parse_intermixed_args()
    answers = {
        'wanted': lambda: wanted(args.names, args.keep),
        'constraints': lambda: constraints(args.keep),
        'key': lambda: [key(args.names)],
        'version': lambda: [version(args.names[0])],
        'pin': lambda: [pinned(args.names[0])],
        'ops': lambda: ['yes'] if has_ops(*args.names) else [],
        'forget': lambda: forget(args.names[0]),
        'share': lambda: share(Path(args.names[0])) or [],
    }
    print('\n'.join(answers[args.question]()))


if __name__ == '__main__':
    main()
