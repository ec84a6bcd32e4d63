"""Parameter groups: what is decayed, what learns at which rate."""

import inspect
from collections.abc import Iterator

from mmengine.logging import print_log
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from mmpretrain.registry import OPTIM_WRAPPERS, OPTIMIZERS
from torch import Tensor, nn
from torch.optim import Optimizer

from .fused import supports_fused


def is_decayed(name: str, parameter: Tensor) -> bool:
    """iBOT's rule: no weight decay for biases and one-dimensional tensors.

    So [CLS] token, position embedding and mask token are decayed, and so is
    a trainable scale of shape ``(K, 1)``.

    Source: iBOT, official code's parameter groups.
    """
    return not (name.endswith('.bias') or parameter.ndim == 1)


def _unknown(kind: str):
    raise KeyError(f"optim_wrapper.optimizer: unknown type '{kind}'")


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class PretrainOptimConstructor:
    """Optimizer wrapper with iBOT's two groups, decayed and not decayed.

    Parameters that do not require a gradient are left out; one that has two
    names is taken once.  Groups carry ``lr_mult`` and ``decay_mult``; their
    ``lr`` and ``weight_decay`` are the config's times these, until
    :class:`ScheduleHook` writes others.  For LARS the group without decay is
    also excluded from the layer-wise rate.  An optimizer that has a fused
    kernel for the parameters' device uses it, unless the config says
    ``fused=...`` or ``foreach=...`` itself.

    Args:
        optim_wrapper_cfg: config of the wrapper with its ``optimizer``.
        paramwise_cfg: ``dict(custom_keys={part of a name: dict(lr_mult=...,
            decay_mult=...)})``; the longest matching key wins, and what it
            does not mention stays as the rule says.
    """

    options: tuple[str, ...] = ('custom_keys',)

    def __init__(
        self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None
    ):
        if 'optimizer' not in optim_wrapper_cfg:
            raise KeyError("optim_wrapper: the key 'optimizer' is missing")
        self.wrapper_cfg = dict(optim_wrapper_cfg)
        self.optimizer_cfg = dict(self.wrapper_cfg.pop('optimizer'))
        self.paramwise_cfg = dict(paramwise_cfg or {})
        unknown = set(self.paramwise_cfg) - set(self.options)
        if unknown:
            raise ValueError(
                f'{type(self).__name__}: paramwise_cfg does not take '
                f'{", ".join(sorted(unknown))}; it takes '
                f'{", ".join(self.options)}'
            )

    def __call__(self, model: nn.Module) -> OptimWrapper:
        if is_model_wrapper(model):
            model = model.module
        groups = self.groups(model)
        optimizer = self._optimizer(groups)
        wrapper_cfg = dict(self.wrapper_cfg)
        wrapper_cfg.setdefault('type', 'PretrainOptimWrapper')
        wrapper = OPTIM_WRAPPERS.build(
            wrapper_cfg, default_args={'optimizer': optimizer}
        )
        if hasattr(wrapper, 'name_parameters'):
            wrapper.name_parameters(model)
        return wrapper

    def _optimizer(self, groups: list[dict]) -> Optimizer:
        cfg = dict(self.optimizer_cfg)
        kind = cfg.pop('type')
        if isinstance(kind, str):
            with OPTIMIZERS.switch_scope_and_registry(None) as registry:
                kind = registry.get(kind) or _unknown(kind)
        if kind.__name__ == 'LARS':
            for group in groups:
                group['lars_exclude'] = group['decay_mult'] == 0
        if (
            'fused' in inspect.signature(kind).parameters
            and not {'fused', 'foreach'} & cfg.keys()
            # fails where a parameter joins later (a frozen last layer)
            and not cfg.get('dampening')
            and supports_fused(kind, groups)
        ):
            cfg['fused'] = True
        return kind(groups, **cfg)

    def groups(self, model: nn.Module) -> list[dict]:
        """Parameter groups of a model, in order of first occurrence."""
        merged: dict[tuple, dict] = {}
        for parameter, options in self._with_options(model):
            key = tuple(sorted(options.items()))
            group = merged.setdefault(key, dict(params=[], **options))
            group['params'].append(parameter)
        if not merged:
            raise ValueError(
                f'{type(model).__name__} has no parameter that requires a '
                'gradient: there is nothing to train'
            )
        for group in merged.values():
            self._set_start(group)
        return list(merged.values())

    def multipliers(
        self, name: str, parameter: Tensor, model: nn.Module
    ) -> dict:
        """``lr_mult`` and ``decay_mult`` of one parameter."""
        decay = 1.0 if is_decayed(name, parameter) else 0.0
        return {'lr_mult': 1.0, 'decay_mult': decay}

    def _with_options(self, model) -> Iterator[tuple[Tensor, dict]]:
        custom = self.paramwise_cfg.get('custom_keys') or {}
        unused = set(custom)
        for name, parameter in model.named_parameters():
            keys = [key for key in custom if key in name]
            unused.difference_update(keys)
            if not parameter.requires_grad:
                continue
            options = self.multipliers(name, parameter, model)
            if keys:
                options.update(custom[max(sorted(keys), key=len)])
            yield parameter, options
        if unused:
            print_log(
                'paramwise_cfg.custom_keys: no parameter has a name with '
                f'{", ".join(sorted(unused))}.',
                logger='current',
            )

    def _set_start(self, group: dict) -> None:
        cfg = self.optimizer_cfg
        if 'lr' in cfg:
            group['lr'] = cfg['lr'] * group['lr_mult']
        if group['decay_mult'] == 0:
            group['weight_decay'] = 0.0
        elif 'weight_decay' in cfg:
            group['weight_decay'] = cfg['weight_decay'] * group['decay_mult']


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(PretrainOptimConstructor):
    """Groups of fine-tuning: learning rates that fall towards the input.

    A parameter of layer i among L + 2 (embeddings 0, blocks 1 to L, the rest
    L + 1) learns at ``layer_decay_rate ** (L + 1 - i)`` times the rate.  No
    weight decay for biases, one-dimensional tensors, [CLS] token and
    position embedding.  The layer comes from ``model.get_layer_depth(name)``
    or else from ``model.backbone.get_layer_depth(name, 'backbone.')``.
    Registered at mmengine's root, for mmpretrain, mmseg and mmdet alike.

    Args:
        optim_wrapper_cfg: as in :class:`PretrainOptimConstructor`.
        paramwise_cfg: ``dict(layer_decay_rate=0.75, custom_keys=...)``.

    Source: iBOT and BEiT, official code of fine-tuning.
    """

    options = ('layer_decay_rate', 'custom_keys')
    undecayed = ('cls_token', 'pos_embed')

    def multipliers(self, name, parameter, model):
        rate = self.paramwise_cfg.get('layer_decay_rate', 1.0)
        layer, count = self._layer_depth(model, name)
        decayed = is_decayed(name, parameter)
        decayed &= name.rsplit('.', 1)[-1] not in self.undecayed
        return {
            'lr_mult': float(rate) ** (count - 1 - layer),
            'decay_mult': float(decayed),
        }

    @staticmethod
    def _layer_depth(model: nn.Module, name: str) -> tuple[int, int]:
        backbone = getattr(model, 'backbone', None)
        if hasattr(backbone, 'get_layer_depth'):
            return backbone.get_layer_depth(name, 'backbone.')
        if hasattr(model, 'get_layer_depth'):
            return model.get_layer_depth(name)
        raise TypeError(
            f'{type(model).__name__}: layer-wise decay needs get_layer_depth '
            f'of its backbone, and {type(backbone).__name__} has none; use a '
            'VisionTransformer, or PretrainOptimConstructor'
        )
