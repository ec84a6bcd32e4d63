"""Checkpoint files that are either whole or not there, and the newest one."""

import errno
import heapq
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from ..checkpoints import CheckpointError, UnsafeCheckpoint, load_file

POINTER = 'last_checkpoint'
PART = '.mim-part'
BACKEND = 'atomic_local'


def write_atomically(path: str | os.PathLike, data: bytes) -> None:
    """Write a file that, at any moment, is the old one or the new one.

    The bytes go to a temporary file in the same folder, and from there to
    the disk before the file gets its name.

    Raises:
        CheckpointError: the file could not be written (disk full, no
            permission); the old one is as it was.
    """
    path = Path(path)
    part = path.with_name(path.name + PART)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _not_written(path, len(data), error) from error


def _sync_folder(folder: Path) -> None:
    """Bring a renaming to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems cannot
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _not_written(path: Path, size: int, error: OSError) -> CheckpointError:
    text = f'{path} could not be written: {error.strerror or error}.'
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free
        text += (
            f' It needs {size / 1e6:,.0f} MB, {free / 1e6:,.0f} MB are free. '
            'Make room, or lower max_keep_ckpts of default_hooks.checkpoint'
        )
    else:
        text += ' Make the folder writable'
    return CheckpointError(
        f'{text}, and start again with --resume: the checkpoints written '
        'before are whole.'
    )


def remove_leftovers(folder: str | os.PathLike) -> list[str]:
    """Remove what writes that were killed have left; returns the names."""
    parts = sorted(Path(folder).glob(f'*{PART}'))
    for part in parts:
        part.unlink(missing_ok=True)
    return [part.name for part in parts]


class AtomicLocalBackend(LocalBackend):
    """mmengine's file backend of local disks, with whole files only.

    A file to be removed is marked, and goes with :meth:`remove_outdated`
    after its successor has been written.
    """

    def __init__(self):
        self.outdated: list[str] = []

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes; see :func:`write_atomically`."""
        write_atomically(filepath, obj)

    def put_text(
        self, obj: str, filepath: str | Path, encoding: str = 'utf-8'
    ) -> None:
        """Write a text; see :func:`write_atomically`."""
        write_atomically(filepath, obj.encode(encoding))

    def remove(self, filepath: str | Path) -> None:
        """Mark a file as outdated."""
        self.outdated.append(os.fspath(filepath))

    def remove_outdated(self) -> None:
        """Remove the files that were marked."""
        while self.outdated:
            Path(self.outdated.pop()).unlink(missing_ok=True)


register_backend(BACKEND, AtomicLocalBackend, force=True)


def check_whole(path: str | os.PathLike) -> None:
    """Read a file of ``torch.save`` and compare its checksums.

    torch itself does not: it loads a file with flipped bits.

    Raises:
        CheckpointError: the file is missing, cut off or altered.
    """
    if not os.path.isfile(path):
        raise CheckpointError(f'{path} is no file. Check the path.')
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except Exception as error:  # zipfile fails in many ways
        raise CheckpointError(
            f'{path} is damaged ({type(error).__name__}: {error}).'
        ) from error
    if broken is not None:
        raise CheckpointError(
            f'{path} is damaged: the checksum of {broken} is another.'
        )


@dataclass(frozen=True)
class _Candidate:
    """A file in the order of its iteration; what cannot be read is first."""

    path: Path
    iteration: float
    time: str = ''
    problem: str = ''

    @classmethod
    def read(cls, path: Path) -> '_Candidate':
        try:
            meta = load_file(path, mmap=True)['meta']
            return cls(path, int(meta['iter']), str(meta['time']))
        except UnsafeCheckpoint:
            raise  # somebody put it there: not to be passed over
        except CheckpointError as error:
            problem = str(error)
        except (KeyError, TypeError, ValueError):
            problem = f'{path} does not say at which iteration it was saved.'
        return cls(path, float('inf'), problem=problem)

    def check(self) -> None:
        """Raises CheckpointError where the file cannot be gone on from."""
        if self.problem:
            raise CheckpointError(self.problem)
        check_whole(self.path)


def newest_whole(
    folder: str | os.PathLike,
    pointer: str | os.PathLike,
    templates: tuple[str, ...],
    warn: Callable[[str], None],
) -> Path | None:
    """The whole checkpoint of the latest iteration in a folder.

    Damaged files are named and passed over. The file that the pointer names
    is not needed, and only decides whether files of later iterations belong
    to an earlier run in the same folder: those were saved before it.

    Args:
        folder (str | os.PathLike): where the checkpoints are.
        pointer (str | os.PathLike): the file ``last_checkpoint``.
        templates (tuple[str, ...]): names with ``{}`` for a number.
        warn (callable): gets a sentence for each file that is passed over.

    Returns:
        Path | None: None if there is no checkpoint at all.

    Raises:
        CheckpointError: there are checkpoints, and all are damaged.
        UnsafeCheckpoint: one that was looked at could run code.
    """
    named = _named_by(pointer)
    damaged = []
    for found in _latest_first(Path(folder), templates):
        if named and _of_earlier_run(found, named):
            warn(
                f'{found.path} is of a later iteration than the last '
                f'checkpoint, {named.path.name}, but was saved before it: '
                'it is of an earlier run in this folder and is not used.'
            )
            continue
        try:
            found.check()
            return found.path
        except CheckpointError as error:
            damaged.append(found.path.name)
            warn(f'{error} The checkpoint before it is tried.')
    if damaged:
        raise CheckpointError(
            f'No checkpoint in {folder} can be used: {", ".join(damaged)}. '
            'Copy whole ones there, or remove them to start afresh.'
        )
    return None


def _named_by(pointer: str | os.PathLike) -> _Candidate | None:
    """What the pointer file names, if that can be read."""
    try:
        name = Path(pointer).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    # Beside the pointer too: the folder may have been moved.
    for path in (Path(name), Path(pointer).parent / Path(name).name):
        if path.is_file():
            found = _Candidate.read(path)
            return None if found.problem else found
    return None


def _of_earlier_run(found: _Candidate, named: _Candidate) -> bool:
    return (
        not found.problem
        and found.iteration > named.iteration
        and found.time < named.time
    )


def _latest_first(
    folder: Path, templates: tuple[str, ...]
) -> Iterator[_Candidate]:
    """Checkpoints by iteration; no file is read before its turn.

    The numbers of one template follow the iterations, those of different
    templates (epochs, iterations) do not compare.
    """
    streams = []
    for template in dict.fromkeys(templates):
        name = re.escape(template).replace(re.escape('{}'), r'(\d+)')
        numbers = {}
        for path in folder.glob('*'):
            match = re.fullmatch(name, path.name)
            if match:
                numbers[int(match[1])] = path
        paths = [numbers[n] for n in sorted(numbers, reverse=True)]
        streams.append(map(_Candidate.read, paths))
    return heapq.merge(*streams, key=lambda c: c.iteration, reverse=True)
