"""Optimizer wrapper of pre-training: precision, clipping, frozen parts."""

from contextlib import contextmanager

import torch
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import Tensor, nn
from torch.optim import Optimizer

from .clip import CLIP_MODES, gradient_norms
from .finite_watch import FiniteWatch
from .masked_step import MaskedStep
from .precision import DTYPES, LossScaler, resolve_precision


@OPTIM_WRAPPERS.register_module()
class PretrainOptimWrapper(OptimWrapper):
    """OptimWrapper with a precision, two ways to clip, and frozen names.

    A step is: unscale (fp16), measure the norm, clip, drop the gradients of
    frozen parameters, update.  So frozen parameters count in a global norm,
    and the optimizer does not see them at all: no update, no weight decay,
    no step count (as iBOT's official code freezes the last layer).
    Registered at mmengine's root, so that configs of mmseg and mmdet find it.

    A loss that is not finite in any process, also of a micro-batch, or (but
    with fp16) such a gradient norm, sets ``watch.halted``.  From then on
    parameters, optimizer and loss scaler keep their values bit by bit (see
    :class:`MaskedStep`), without the host being asked.  What does ask it, and
    ends the run, is :class:`NonFiniteHook`.

    With fp16 a step with non-finite gradients leaves the parameters alone
    and halves the loss scale.  It still counts as a step everywhere else:
    schedules move on, and so do the teacher and the centres (the student has
    not changed, so this is harmless; the official code does the same, and
    asking would cost a synchronisation per step).

    Args:
        optimizer: optimizer of torch.
        accumulative_counts: iterations per optimizer step.
        clip: ``dict(max_norm=3.0, mode='tensor')`` or None.  Mode ``tensor``
            clips each parameter's gradient by its own norm, ``global`` all
            by their common norm.
        precision: ``'fp32'``, ``'bf16'``, ``'fp16'`` or ``'auto'`` (see
            :func:`resolve_precision`).
        scaler: arguments of GradScaler for fp16.
        frozen: parameters whose name contains one of these are not updated;
            may be set during training (:class:`FreezeLastLayerHook`).

    Attributes:
        precision (str): ``'fp32'``, ``'bf16'`` or ``'fp16'``.
        watch (FiniteWatch): whether loss and gradients were finite so far;
            iterations count from 1.
        grad_norm (Tensor | None): global L2 norm of the last step's gradients
            before clipping, on the device.
        stepped (bool): whether the last iteration ended with a step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        accumulative_counts: int = 1,
        clip: dict | None = None,
        precision: str = 'fp32',
        scaler: dict | None = None,
        frozen: tuple[str, ...] = (),
    ):
        super().__init__(optimizer, accumulative_counts)
        self.max_norm, self.clip_func_ = _parse_clip(clip)
        device = optimizer.param_groups[0]['params'][0].device
        self.device_type = device.type
        self.watch = FiniteWatch(device)
        self._masked_step = MaskedStep(optimizer)
        self.precision = resolve_precision(precision, self.device_type)
        if precision == 'auto':
            print_log(
                f"Precision 'auto' is {self.precision} on "
                f"'{self.device_type}'.",
                logger='current',
            )
        self.scaler = None
        if self.precision == 'fp16':
            self.scaler = LossScaler(self.device_type, **(scaler or {}))
        self.grad_norm: Tensor | None = None
        self.stepped = False
        self.frozen = frozen
        self._names: dict[Tensor, str] = {}

    @property
    def frozen(self) -> tuple[str, ...]:
        """Parts of the names of frozen parameters."""
        return self._frozen

    @frozen.setter
    def frozen(self, patterns) -> None:
        if isinstance(patterns, str):
            patterns = (patterns,)
        self._frozen = tuple(patterns or ())

    def name_parameters(self, model: nn.Module) -> None:
        """Learn the names of the parameters, which ``frozen`` refers to."""
        if is_model_wrapper(model):
            model = model.module
        self._names = {p: name for name, p in model.named_parameters()}

    def initialize_count_status(
        self, model: nn.Module, init_counts: int, max_counts: int
    ) -> None:
        """As in mmengine; called by the runner before training."""
        super().initialize_count_status(model, init_counts, max_counts)
        self.name_parameters(model)

    @contextmanager
    def optim_context(self, model: nn.Module):
        """Forward under autocast; no gradient exchange while accumulating."""
        dtype = DTYPES.get(self.precision)
        with super().optim_context(model):
            if dtype is None:
                yield
            else:
                with torch.autocast(self.device_type, dtype=dtype):
                    yield

    def backward(self, loss: Tensor, **kwargs) -> None:
        """Backward of a loss, scaled for fp16."""
        self.stepped = False
        self.watch.look(loss, self._inner_count + 1)
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        super().backward(loss, **kwargs)

    def step(self, **kwargs) -> None:
        """Clip, drop frozen gradients, update the parameters."""
        scaler = self.scaler
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        self._measure_and_clip()
        if scaler is None and self.grad_norm is not None:
            self.watch.look(self.grad_norm, self._inner_count)
        halted = self.watch.agree()
        self._drop_frozen()
        if scaler is None:
            self._masked_step(halted, **kwargs)
        else:
            skip = halted | scaler.overflowed(self.optimizer)
            self._masked_step(skip, **kwargs)
            scaler.update_unless(halted)
        self.stepped = True

    def _parameters(self):
        for group in self.optimizer.param_groups:
            yield from group['params']

    @torch.no_grad()
    def _measure_and_clip(self) -> None:
        grads = [p.grad for p in self._parameters() if p.grad is not None]
        if not grads:
            self.grad_norm = None
            return
        norms = gradient_norms(grads)
        self.grad_norm = torch.linalg.vector_norm(norms)
        if self.clip_func_ is not None:
            self.clip_func_(grads, norms, self.max_norm)

    def _drop_frozen(self) -> None:
        if not self.frozen:
            return
        if not self._names:
            raise RuntimeError(
                f'PretrainOptimWrapper: frozen={self.frozen} refers to names '
                'of parameters, but none are known; use '
                "constructor='PretrainOptimConstructor' or call "
                'name_parameters(model) first'
            )
        for parameter in self._parameters():
            name = self._names.get(parameter, '')
            if any(pattern in name for pattern in self.frozen):
                parameter.grad = None

    def state_dict(self) -> dict:
        """State of the optimizer and, for fp16, of the loss scaler."""
        state = super().state_dict()
        if self.scaler is not None:
            state['loss_scaler'] = self.scaler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load what :meth:`state_dict` gave, in any precision."""
        state = dict(state_dict)
        scaler = state.pop('loss_scaler', None)
        if scaler and self.scaler is not None:
            self.scaler.load_state_dict(scaler)
        elif bool(scaler) != (self.scaler is not None):
            print_log(
                'The optimizer state was saved '
                f'{"with" if scaler else "without"} a loss scaler, this run '
                f'uses precision {self.precision}: the scaler starts afresh '
                'or is not used.',
                logger='current',
            )
        super().load_state_dict(state)


def _parse_clip(clip: dict | None):
    """Largest norm and clipping function of a config."""
    if clip is None:
        return None, None
    options = dict(clip)
    max_norm = options.pop('max_norm', None)
    mode = options.pop('mode', 'tensor')
    if options or mode not in CLIP_MODES:
        raise ValueError(
            f'clip={dict(clip)} is not understood: give max_norm and mode, '
            f'one of {", ".join(CLIP_MODES)}'
        )
    if not max_norm:
        return None, None
    if max_norm < 0:
        raise ValueError(f'clip: max_norm must not be negative: {max_norm}')
    return float(max_norm), CLIP_MODES[mode]
