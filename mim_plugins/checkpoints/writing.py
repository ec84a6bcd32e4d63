"""Output files that are complete or not there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import CheckpointError


@contextmanager
def whole_file(out: str, source: str) -> Iterator[str]:
    """A temporary name to write to, which becomes ``out`` at the end.

    Args:
        out: the file to write; folders above it are made.
        source: the file that is read meanwhile.

    Raises:
        CheckpointError: if the two files are one.
    """
    if os.path.realpath(source) == os.path.realpath(out):
        raise CheckpointError(
            f'{out} is the checkpoint itself. Name another output file.'
        )
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    partial = f'{out}.partial'
    try:
        yield partial
        os.replace(partial, out)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
