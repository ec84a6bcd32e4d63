"""Keys of a config that nothing reads, and the known ones they resemble.

A mistyped key is often no error: mmengine reads its own settings with
``get``, and a part with ``**kwargs`` may hand a key on to anything. Here every
dict of a config is compared with what its reader takes: the constructor of
its ``type``, or a section of the Runner's.
"""

import contextlib
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import mmpretrain.registry as registries
from mmengine.config import Config
from mmengine.dist import init_dist
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import FUNCTIONS, WEIGHT_INITIALIZERS, Registry
from mmengine.runner import (
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    LogProcessor,
    Runner,
    TestLoop,
    ValLoop,
)
from mmengine.utils.dl_utils import set_multi_processing
from torch.utils.data import DataLoader

from ..datasets.view_dataset import VIEW_KEYS
from ..models.data_preprocessor import ViewDataPreprocessor
from .schedules import SCHEDULES

CUTOFF = 0.8
_REGISTRIES = (
    *(r for r in vars(registries).values() if isinstance(r, Registry)),
    FUNCTIONS,
    WEIGHT_INITIALIZERS,
)
# What another part takes out of a dict before it builds the type.
_TAKEN_OUT = {
    Hook: {'priority'},
    OptimWrapper: {'constructor', 'paramwise_cfg'},
}
_REFUSAL = re.compile(r"(?:unexpected keyword argument|unknown key) '(\w+)'")


class UnknownKey(NamedTuple):
    """A key that its reader does not name.

    Attributes:
        path: where it stands, such as ``model.student.patch_sise``.
        reader: the type, or the section, that does not know it.
        near: the known key that it may stand for, or None.
    """

    path: str
    reader: str
    near: str | None

    def __str__(self) -> str:
        key = self.path.rpartition('.')[2]
        text = f"{self.path}: {self.reader} has no key '{key}'."
        return text + (f" Did you mean '{self.near}'?" if self.near else '')


def near_misses(cfg: Config) -> list[UnknownKey]:
    """Keys that nothing reads and that look like a known one."""
    return [key for key in unknown_keys(cfg) if key.near]


@contextlib.contextmanager
def refusals_explained(cfg: Config, kind: type[Exception]) -> Iterator[None]:
    """Say where the key stands that a constructor refuses.

    Args:
        cfg (Config): from which things are built within the context.
        kind (type[Exception]): raised in place of a TypeError about a key of
            the config that its reader does not know; all else passes.
    """
    try:
        yield
    except TypeError as refusal:
        match = _REFUSAL.search(str(refusal))
        places = [
            str(key)
            for key in unknown_keys(cfg)
            if match and key.path.rpartition('.')[2] == match[1]
        ]
        if not places:
            raise
        raise kind(' '.join(places)) from refusal


def unknown_keys(cfg: Config) -> Iterator[UnknownKey]:
    """All keys that their reader does not name, from the top down.

    A reader with ``**kwargs`` may take what is found here. Names at the top
    that are like no other are variables of the config.
    """
    known = accepted_keys(Runner) | {
        'runner_type',
        'model_wrapper_cfg',
        'custom_imports',
        'vis_backends',
    }
    top = _compare(cfg, known, 'the config', '')
    yield from (key for key in top if key.near)
    for name, value in cfg.items():
        yield from _walk(value, PurePosixPath('/', name))


def _walk(node: Any, path: PurePosixPath) -> Iterator[UnknownKey]:
    if isinstance(node, (list, tuple)):
        children = enumerate(node)
    elif isinstance(node, Mapping):
        yield from _examine(node, path)
        children = node.items()
    else:
        return
    for name, child in children:
        yield from _walk(child, path / str(name))


def _examine(node: Mapping, path: PurePosixPath) -> Iterator[UnknownKey]:
    """One dict, without those below it."""
    where = '.'.join(path.parts[1:])
    section = next((k for p, k in _sections().items() if path.match(p)), None)
    readers = _readers(node.get('type'))
    if readers:
        known = set().union(*map(accepted_keys, readers), section or ())
        yield from _compare(node, known, readers[0].__name__, where)
    elif section:
        yield from _compare(node, section, where, where)
    elif 'type' not in node:
        # Parts by name: one without a type was to change another.
        children = {k: v for k, v in node.items() if isinstance(v, Mapping)}
        parts = {k for k, v in children.items() if 'type' in v}
        if parts:
            others = [k for k in children if k not in parts]
            yield from _compare(others, parts, where, where)


def _compare(
    keys: Iterable, known: set[str], reader: str, where: str
) -> Iterator[UnknownKey]:
    for key in map(str, keys):
        if key not in known and key != 'type' and not key.startswith('_'):
            near = difflib.get_close_matches(key, known, 1, CUTOFF)
            path = f'{where}.{key}' if where else key
            yield UnknownKey(path, reader, near[0] if near else None)


def accepted_keys(reader: Callable) -> set[str]:
    """Keyword arguments of a function or class.

    Those of a class with ``**kwargs`` include its base classes', up to the
    first without.
    """
    if not inspect.isclass(reader):
        return set(inspect.signature(reader).parameters)
    keys: set[str] = set()
    for base, names in _TAKEN_OUT.items():
        if issubclass(reader, base):
            keys |= names
    for cls in reader.__mro__:
        if '__init__' in vars(cls):
            parameters = inspect.signature(cls.__init__).parameters
            keys.update(parameters)
            kinds = [p.kind for p in parameters.values()]
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                break
    return keys


def _readers(kind: Any) -> list[Callable]:
    """All that a ``type`` may stand for, in any registry."""
    if callable(kind):
        return [kind]
    return _registered(kind) if isinstance(kind, str) else []


@functools.lru_cache
def _registered(name: str) -> list[Callable]:
    found = [registry.get(name) for registry in _REGISTRIES]
    found.append(SCHEDULES.get(name))
    return list(dict.fromkeys(filter(None, found)))


@functools.lru_cache
def _sections() -> dict[str, set[str]]:
    """Keys of dicts without a type, and further ones of dicts with one.

    The names are patterns of paths, from the top or (without a slash at the
    start) of their end.
    """
    loops = (EpochBasedTrainLoop, IterBasedTrainLoop)
    return {
        '*_dataloader': accepted_keys(DataLoader) | {'num_batch_per_epoch'},
        'views/*': set(VIEW_KEYS),
        'jitter': {'brightness', 'contrast', 'saturation', 'hue', 'prob'},
        'blur': {'prob', 'radius'},
        'solarize': {'prob', 'threshold'},
        'schedules/schedules/*': {'target'},
        '/train_cfg': {'by_epoch'}.union(*map(accepted_keys, loops)),
        '/val_cfg': accepted_keys(ValLoop),
        '/test_cfg': accepted_keys(TestLoop),
        '/randomness': accepted_keys(Runner.set_randomness),
        '/env_cfg': {
            'cudnn_benchmark',
            'mp_cfg',
            'dist_cfg',
            'resource_limit',
        },
        '/env_cfg/mp_cfg': accepted_keys(set_multi_processing),
        '/env_cfg/dist_cfg': accepted_keys(init_dist) | {'timeout'},
        '/log_processor': accepted_keys(LogProcessor),
        '/auto_scale_lr': {'enable', 'base_batch_size'},
        '/optim_wrapper': accepted_keys(OptimWrapper),
        '/optim_wrapper/clip': {'max_norm', 'mode'},
        '/data_preprocessor': accepted_keys(ViewDataPreprocessor),
        '/model/data_preprocessor': accepted_keys(ViewDataPreprocessor),
    }
