"""Dotted paths into a model."""

from typing import Any

from mmengine.model import is_model_wrapper
from torch import Tensor, nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a data-parallel wrapper, or the model itself."""
    return model.module if is_model_wrapper(model) else model


def resolve(root: nn.Module, path: str) -> tuple[Any, str]:
    """Owner and last name of a dotted path.

    Raises:
        AttributeError: if a part of the path does not exist; the sentence
            names the part and what there is in its place.
    """
    owner, names = root, path.split('.')
    for i, name in enumerate(names):
        if not hasattr(owner, name):
            where = '.'.join(names[:i]) or 'the model'
            raise AttributeError(
                f"'{path}': {where} ({type(owner).__name__}) has no "
                f"'{name}'{_alternatives(owner)}"
            )
        if i < len(names) - 1:
            owner = getattr(owner, name)
    return owner, names[-1]


def _alternatives(owner: Any) -> str:
    if not isinstance(owner, nn.Module):
        return ''
    names = [name for name, _ in owner.named_children()]
    return f'; it has the parts {", ".join(names)}' if names else ''


def write(owner: Any, name: str, value: float) -> None:
    """Set a number; a tensor is filled in place, so that it stays one."""
    current = getattr(owner, name)
    if isinstance(current, Tensor):
        current.data.fill_(value)
    else:
        setattr(owner, name, value)
