"""torch.compile for parts of a model."""

import torch
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS
from torch import nn

from .attributes import resolve, unwrapped


@HOOKS.register_module()
class CompileHook(Hook):
    """Compiles modules or methods of the model before training.

    Names of parameters, and so checkpoints, stay as they are.  Where
    torch.compile does not work (no C++ compiler, say), training goes on
    without it, and the log says so.

    Args:
        targets: dotted paths below the model, each of a module (its forward
            is compiled) or of a method.
        options: arguments of torch.compile (``backend``, ``mode`` ...).
        required: raise an error instead of going on without.
    """

    priority = 'NORMAL'

    def __init__(
        self,
        targets: tuple[str, ...] = (
            'student.forward_tokens',
            'teacher.backbone.forward_tokens',
        ),
        options: dict | None = None,
        required: bool = False,
    ):
        self.targets = (targets,) if isinstance(targets, str) else targets
        self.options = dict(options or {})
        self.required = required

    def before_train(self, runner) -> None:
        """Try a tiny function, then compile the targets."""
        model = unwrapped(runner.model)
        found = [resolve(model, target) for target in self.targets]
        device = next(model.parameters()).device
        problem = self._try(device)
        if problem is not None:
            message = (
                f'torch.compile does not work here ({problem}). A C++ '
                'compiler is needed on a processor, Triton on a GPU'
            )
            if self.required:
                raise RuntimeError(f'CompileHook: {message}.')
            runner.logger.warning(f'{message}; training without it.')
            return
        for owner, name in found:
            part = getattr(owner, name)
            if isinstance(part, nn.Module):
                part.compile(**self.options)
            else:
                setattr(owner, name, torch.compile(part, **self.options))
        runner.logger.info(f'torch.compile: {", ".join(self.targets)}.')

    def _try(self, device: torch.device) -> str | None:
        """First line of what goes wrong with a tiny function, or None."""
        try:
            function = torch.compile(lambda x: x * 2 + 1, **self.options)
            function(torch.ones(4, device=device))
        except Exception as error:  # compilers fail in many ways
            error = getattr(error, 'inner_exception', error)
            text = str(error).strip() or type(error).__name__
            return text.splitlines()[0]
        return None
