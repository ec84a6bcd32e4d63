"""A training step of iBOT in the order of the official code.

It saves no work: explicit attention, heads on every token of every crop, a
log-softmax for every pair of views, clipping, optimizer and moving average
tensor by tensor. What the speed of this package is compared with.
"""

import torch
from torch import Tensor, nn

from .literal_ibot import Settings, ibot_step


class LiteralStep:
    """Forward, backward and update of an ``IBOT`` model, literally.

    Args:
        model (nn.Module): an ``IBOT`` whose backbones have
            ``attention='explicit'``; only its modules are used, none of its
            objectives' code.
        lr, weight_decay (float): of AdamW, as PyTorch defines it.
        max_norm (float): largest norm of a parameter's gradient.
        settings (Settings, optional): temperatures and momenta.

    Source: iBOT, official code (order of the step).
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 5e-4,
        weight_decay: float = 0.04,
        max_norm: float = 3.0,
        settings: Settings | None = None,
    ):
        self.model = model
        self.max_norm = max_norm
        self.settings = settings or Settings()
        self.named = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]
        decayed, rest = [], []
        for name, parameter in self.named:
            plain = name.endswith('.bias') or parameter.ndim == 1
            (rest if plain else decayed).append(parameter)
        groups = [
            {'params': decayed},
            {'params': rest, 'weight_decay': 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr, weight_decay=weight_decay, foreach=False, fused=False
        )

    def __call__(self, inputs: dict) -> Tensor:
        """One step on normalised inputs; returns the loss."""
        parts = ibot_step(self.model, inputs, self.settings)
        loss = parts['loss_cls'] + parts['loss_patch']
        self.optimizer.zero_grad()
        loss.backward()
        for _, parameter in self.named:
            if parameter.grad is not None:
                norm = parameter.grad.norm(2)
                scale = self.max_norm / (norm + 1e-6)
                if scale < 1:
                    parameter.grad.mul_(scale)
        self.optimizer.step()
        self._move(parts)
        return loss.detach()

    @torch.no_grad()
    def _move(self, parts: dict[str, Tensor]) -> None:
        teacher = self.model.teacher
        momentum = teacher.momentum
        for mine, theirs in (
            (teacher.backbone, self.model.student),
            (teacher.head, self.model.head),
        ):
            student = dict(theirs.named_parameters())
            for name, parameter in mine.named_parameters():
                parameter.mul_(momentum).add_((1 - momentum) * student[name])
        for name, objective in self.model.objectives.items():
            objective.normalization.centre.copy_(parts[f'{name}_centre'])
