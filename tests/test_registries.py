"""The parts are registered under names that nobody else has."""

import importlib

import mmengine.registry
import mmpretrain.registry
import pytest
from mmengine.registry import Registry

import mim_plugins  # noqa: F401


def registries(module) -> dict[str, Registry]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Registry)
    }


def ours(registry: Registry) -> dict[str, type]:
    return {
        name: part
        for name, part in registry.module_dict.items()
        if getattr(part, '__module__', '').startswith('mim_plugins')
    }


def libraries():
    modules = [mmengine.registry, mmpretrain.registry]
    for name in ('mmseg', 'mmdet'):
        try:
            # Registers all that the library has.
            importlib.import_module(f'{name}.utils').register_all_modules(
                init_default_scope=False
            )
        except (ImportError, AssertionError):
            continue
        modules.append(importlib.import_module(f'{name}.registry'))
    return modules


@pytest.mark.parametrize('kind', sorted(registries(mmpretrain.registry)))
def test_names_are_unique(kind):
    mine = {}
    theirs = {}
    for module in libraries():
        registry = registries(module).get(kind)
        if registry is None:
            continue
        own = ours(registry)
        mine.update(own)
        for name, part in registry.module_dict.items():
            if name not in own:
                theirs.setdefault(name, part)
    clash = {name: theirs[name] for name in mine if name in theirs}
    assert not clash


def test_every_kind_of_part_is_there():
    for kind in ('MODELS', 'DATASETS', 'TRANSFORMS', 'HOOKS', 'LOOPS'):
        assert ours(registries(mmpretrain.registry)[kind]), kind
    for kind in ('FUNCTIONS', 'OPTIM_WRAPPERS', 'OPTIM_WRAPPER_CONSTRUCTORS'):
        found = [
            ours(registries(module)[kind])
            for module in (mmengine.registry, mmpretrain.registry)
            if kind in registries(module)
        ]
        assert any(found), kind
