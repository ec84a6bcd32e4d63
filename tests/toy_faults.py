"""Accidents at named points of a checkpoint write."""

import os
import signal
from pathlib import Path

from mim_plugins.engine import checkpoint_files

# of a file, then of the pointer file, then of what has become outdated
MOMENTS = (
    'before writing',
    'half written',
    'written',
    'on disk',
    'renamed',
    'renaming on disk',
)
POINTS = (
    *(f'checkpoint: {moment}' for moment in MOMENTS),
    *(f'pointer: {moment}' for moment in MOMENTS),
    'old one: before deletion',
    'old one: deleted',
)


def crash(point: str, write: int = 2):
    """A fault of rank 0 for ``toy_resume.start``.

    Args:
        point (str): one of ``POINTS``.
        write (int): in the how manieth checkpoint written (in the first
            deletion from then on).
    """
    if point not in POINTS:
        raise ValueError(f'{point} is none of {POINTS}')

    def prepare(rank: int) -> None:
        if rank == 0:
            _Instruments(point, write).install()

    return prepare


class _Instruments:
    """Stand between ``checkpoint_files`` and the operating system."""

    def __init__(self, point: str, write: int):
        self.point, self.write = point, write
        self.writes = 0
        self.kind = ''

    def install(self) -> None:
        self.fsync, self.replace = os.fsync, os.replace
        self.unlink = Path.unlink
        checkpoint_files.open = self._open
        os.fsync, os.replace = self._fsync, self._replace
        Path.unlink = lambda path, **options: self._unlink(path, **options)

    def _reach(self, moment: str) -> None:
        if self.writes >= self.write and self.point == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def _open(self, path, mode):
        pointer = Path(path).name.startswith(checkpoint_files.POINTER)
        self.kind = 'pointer' if pointer else 'checkpoint'
        self.writes += not pointer
        self._reach(f'{self.kind}: before writing')
        return _File(open(path, mode), self)

    def _fsync(self, descriptor: int) -> None:
        folder = os.path.isdir(f'/proc/self/fd/{descriptor}')
        if not folder:
            self._reach(f'{self.kind}: written')
        self.fsync(descriptor)
        after = 'renaming on disk' if folder else 'on disk'
        self._reach(f'{self.kind}: {after}')

    def _replace(self, source, target) -> None:
        self.replace(source, target)
        self._reach(f'{self.kind}: renamed')

    def _unlink(self, path: Path, **options) -> None:
        old = path.suffix == '.pth'
        if old:
            self._reach('old one: before deletion')
        self.unlink(path, **options)
        if old:
            self._reach('old one: deleted')


class _File:
    """A file of which half can be written."""

    def __init__(self, file, instruments: _Instruments):
        self.file, self.instruments = file, instruments
        self.flush, self.fileno = file.flush, file.fileno

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, data: bytes) -> None:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.instruments._reach(f'{self.instruments.kind}: half written')
        self.file.write(data[len(data) // 2 :])
