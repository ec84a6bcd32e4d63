"""Reading checkpoint files without running what is in them."""

import argparse
import codecs
import os
import pickle
import pickletools
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch.serialization import MAGIC_NUMBER

from .errors import CheckpointError, UnsafeCheckpoint
from .huggingface import is_safetensors, load_safetensors, weights_of

try:
    from numpy._core import multiarray
except ImportError:  # numpy 1
    from numpy.core import multiarray

_NUMPY_TYPES = (
    *('float16', 'float32', 'float64', 'bool'),
    *('int8', 'int16', 'int32', 'int64'),
    *('uint8', 'uint16', 'uint32', 'uint64'),
)


def load_file(
    path: str | os.PathLike,
    map_location: str | torch.device = 'cpu',
    mmap: bool = False,
) -> dict:
    """Load a checkpoint: tensors, plain Python values, little else.

    Beyond what ``torch.load(weights_only=True)`` allows, a file may hold
    ``argparse.Namespace`` (official iBOT files), numpy arrays and scalars of
    numbers, and mmengine's log histories (this project's checkpoints).  No
    setting and no failure makes it load more than that.

    Args:
        path (str | os.PathLike): a local file, also of safetensors, or a
            Hugging Face folder with one.
        map_location (str | torch.device): where the tensors go.
        mmap (bool): read tensors from the disk when they are used, where
            the format allows it.

    Returns:
        dict: what the file holds.

    Raises:
        UnsafeCheckpoint: if the file holds code (TorchScript) or asks for a
            function or class beyond those above.  Nothing of it was run.
        CheckpointError: if the file is missing, incomplete, of another
            format, or holds no dict.
    """
    path = weights_of(os.fspath(path))
    _check_kind(path)
    if is_safetensors(path):
        return load_safetensors(path, map_location)
    try:
        with _allowances():
            checkpoint = torch.load(
                path,
                map_location=map_location,
                weights_only=True,
                mmap=mmap and _is_archive(path),
            )
    except pickle.UnpicklingError as error:
        # torch 2.4 raises this for missing weights, too
        if _is_complete(path) and 'unexpected EOF' not in str(error):
            raise UnsafeCheckpoint(
                f'{path} was not loaded: it holds more than weights '
                f'({_reason(error)}) and could run code. If you trust its '
                'source, load it there, save its state_dict() alone with '
                'torch.save, and load that file.'
            ) from None
        raise _damaged(path, error) from error
    except Exception as error:
        raise _damaged(path, error) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(
            f'{path} holds a {type(checkpoint).__name__}, not a dict of '
            'weights. Save a state_dict().'
        )
    return checkpoint


def _check_kind(path: str) -> None:
    """Tell apart, by the first bytes, files that torch.load explains badly.

    TorchScript has to be found here: torch would hand it to its own loader.
    """
    if not os.path.exists(path):
        hint = 'Download it first' if '://' in path else 'Check the path'
        raise CheckpointError(f'{path} is no file on this machine. {hint}.')
    if os.path.isdir(path):
        raise CheckpointError(
            f'{path} is a folder. Name a checkpoint file in it.'
        )
    with open(path, 'rb') as file:
        head = file.read(64)
    if not head:
        raise CheckpointError(f'{path} is empty. Download or copy it again.')
    if head.lstrip()[:1] == b'<':
        raise CheckpointError(
            f'{path} is a web page, not a checkpoint. Open it in a browser '
            'to see what the server says, then download again.'
        )
    if head.startswith(b'version https://git-lfs'):
        raise CheckpointError(
            f'{path} is a Git LFS pointer. Run `git lfs pull` to fetch the '
            'file that it stands for.'
        )
    if _is_archive(path):
        _check_archive(path)
    elif _is_old_archive(path):
        # as torch 2.6 and later do themselves
        raise UnsafeCheckpoint(
            f'{path} was not loaded: it is a tar archive, the oldest format '
            'of torch, and could run code. If you trust its source, load it '
            'there and save its state_dict() with a newer torch.'
        )
    if path.endswith('.safetensors') and not is_safetensors(path):
        # torch would go by the name, or not, by its version
        raise CheckpointError(
            f'{path} is no safetensors file, and was not loaded. If it is '
            "one of torch's, give it a name that ends in .pth."
        )


def _is_archive(path: str) -> bool:
    with open(path, 'rb') as file:
        return file.read(2) == b'PK'


def _check_archive(path: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception as error:  # zipfile fails in many ways
        raise CheckpointError(
            f'{path} is incomplete: its end is missing or damaged, as after '
            'an interrupted download. Download or copy it again.'
        ) from error
    if any(n.endswith('/constants.pkl') or '/code/' in n for n in names):
        raise UnsafeCheckpoint(
            f'{path} is a TorchScript archive, which holds code, and was not '
            'loaded. Use weights from a source that publishes them as a '
            'state dict (for official CLIP files: open_clip or Hugging '
            'Face), or save its state_dict() where you trust it.'
        )


def _is_old_archive(path: str) -> bool:
    """Whether torch would take a file for the tar archives of its start."""
    try:
        with tarfile.open(path, 'r:') as archive:
            return 'storages' in archive.getnames()
    except tarfile.TarError:
        return False


def _is_complete(path: str) -> bool:
    """Whether a file is a whole archive, or pickles that are not cut off.

    Only the codes of the pickles are read; nothing is built from them.
    """
    if _is_archive(path):
        return _is_intact(path)
    with open(path, 'rb') as file:
        try:
            legacy = any(
                argument == MAGIC_NUMBER
                for _, argument, _ in pickletools.genops(file)
            )
            for _ in range(4 if legacy else 0):
                for _ in pickletools.genops(file):
                    pass
        except Exception:
            return False
    return True


def _is_intact(path: str) -> bool:
    """Whether the pickles of an archive are as they were written."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith('.pkl'):
                    archive.read(name)
    except Exception:  # zipfile fails in many ways
        return False
    return True


def _reason(error: Exception) -> str:
    """The part of torch's long message that names the culprit."""
    text = str(error).replace('\n', ' ')
    text = text.split('WeightsUnpickler error:')[-1].strip()
    text = text.split('Please use')[0].split('Check the documentation')[0]
    return text.strip().rstrip('.') or type(error).__name__


def _damaged(path: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f'{path} could not be read as a checkpoint '
        f'({type(error).__name__}: {_reason(error)}). It is incomplete or '
        'of another format. Download or copy it again.'
    )


@contextmanager
def _allowances() -> Iterator[None]:
    """Let torch read what :func:`load_file` allows, and only meanwhile."""
    serialization = torch.serialization
    if hasattr(serialization, 'safe_globals'):
        with serialization.safe_globals(_ALLOWED):
            yield
        return
    # torch 2.4, which hands out its own list
    before = list(serialization.get_safe_globals())
    serialization.add_safe_globals(_ALLOWED)
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(before)


class _History(HistoryBuffer):
    """Takes a stored log history's numbers and leaves its functions.

    mmengine's class would put functions named by the file among those that
    every later log line calls.
    """

    def __setstate__(self, state: dict) -> None:
        self.__class__ = HistoryBuffer
        self.__init__(max_length=int(state['max_length']))
        self._log_history = np.asarray(state['_log_history'])
        self._count_history = np.asarray(state['_count_history'])


def _method_name(owner: type, name: str) -> str:
    """Stands for ``getattr``, which log histories use for their methods."""
    if owner is not _History or name.startswith('_'):
        raise pickle.UnpicklingError(f'getattr of {name} is not allowed')
    return name


def _named(thing: Callable, module: str, name: str) -> Callable:
    """Give a stand-in the name under which files ask for it."""
    thing.__module__, thing.__name__ = module, name
    thing.__qualname__ = name
    return thing


def _copies(function: Callable, name: str) -> list[Callable]:
    """One function under its names of numpy 1 and numpy 2."""
    return [
        _named(lambda *args: function(*args), module, name)
        for module in ('numpy.core.multiarray', 'numpy._core.multiarray')
    ]


_ALLOWED = [
    argparse.Namespace,
    np.ndarray,
    np.dtype,
    codecs.encode,  # bytes of numpy scalars; torch 2.4 lacks it
    *{type(np.dtype(name)) for name in _NUMPY_TYPES},
    *_copies(multiarray._reconstruct, '_reconstruct'),
    *_copies(multiarray.scalar, 'scalar'),
    _named(_History, 'mmengine.logging.history_buffer', 'HistoryBuffer'),
    _named(_method_name, 'builtins', 'getattr'),
]
