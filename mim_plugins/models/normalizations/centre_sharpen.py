"""Centring and sharpening of a teacher's logits (DINO, iBOT)."""

import torch
from mmengine import dist
from mmpretrain.registry import MODELS
from torch import Tensor, nn


@MODELS.register_module()
class CentreSharpen(nn.Module):
    """``softmax((logits - centre) / temperature)`` with a running centre.

    The centre is an average of raw logits over all processes.  It moves once
    per optimizer step: :meth:`observe` collects the logits of each
    (micro-)batch, :meth:`step` applies them.

    Args:
        dim (int): K, number of prototypes.
        momentum (float): of the centre, in [0, 1].
        temperature (float): of the teacher; usually set by a schedule.
        centring (bool): whether the centre is subtracted.
        sharpening (bool): whether the teacher's temperature is used; without
            it the targets are as soft as the student's predictions.
        student_temperature (float): the temperature in the place of the
            teacher's when there is no sharpening.
        hard (bool): whether targets are one-hot at the largest logit.

    Source: iBOT, Sec. 3.1 and Table 18 (softmax or hard targets, centring,
    sharpening separable); the centre of patch tokens is over all tokens.
    """

    def __init__(
        self,
        dim: int,
        momentum: float = 0.9,
        temperature: float = 0.04,
        centring: bool = True,
        sharpening: bool = True,
        student_temperature: float = 0.1,
        hard: bool = False,
    ):
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f'momentum={momentum} must lie in [0, 1].')
        for name, value in (
            ('temperature', temperature),
            ('student_temperature', student_temperature),
        ):
            if value <= 0:
                raise ValueError(f'{name}={value} must be above zero.')
        self.momentum = momentum
        self.temperature = temperature
        self.centring = centring
        self.sharpening = sharpening
        self.student_temperature = student_temperature
        self.hard = hard
        self.register_buffer('centre', torch.zeros(dim))
        self._sum: Tensor | None = None
        self._count = 0

    @torch.no_grad()
    def forward(self, logits: Tensor) -> Tensor:
        """``(..., K)`` logits to distributions, in float32 at least."""
        if logits.dtype != torch.float64:
            logits = logits.float()
        if self.centring:
            logits = logits - self.centre
        if self.hard:
            index = logits.argmax(-1, keepdim=True)
            return torch.zeros_like(logits).scatter_(-1, index, 1.0)
        sharp = self.sharpening
        divisor = self.temperature if sharp else self.student_temperature
        return (logits / divisor).softmax(-1)

    @torch.no_grad()
    def observe(self, logits: Tensor) -> None:
        """Add raw logits ``(..., K)`` to the next move of the centre."""
        logits = logits.flatten(0, -2)
        count = logits.shape[0]
        self.observe_mean(logits.mean(0, dtype=self.centre.dtype), count)

    @torch.no_grad()
    def observe_mean(self, mean: Tensor, count: int) -> None:
        """Add the mean ``(K,)`` of ``count`` raw logits."""
        total = mean.to(self.centre.dtype) * count
        self._sum = total if self._sum is None else self._sum + total
        self._count += count

    @torch.no_grad()
    def step(self, halted: Tensor | None = None) -> None:
        """Move the centre by what was observed since the last step.

        All processes must call it; one of them may have observed nothing.
        Logits that are not finite leave the centre where it is.

        Args:
            halted (Tensor, optional): bool, 0-dim: where it is set, the
                centre stays too.
        """
        total = self._sum
        if total is None:  # other processes may have seen some
            total = torch.zeros_like(self.centre)
        packed = torch.cat([total, total.new_full((1,), self._count)])
        dist.all_reduce(packed)
        total, count = packed[:-1], packed[-1]
        moved = self.centre.lerp(total / count.clamp_min(1), 1 - self.momentum)
        # only a sum of finite numbers is one
        moves = (count > 0) & total.sum().isfinite()
        if halted is not None:
            moves = moves & ~halted
        self.centre.copy_(torch.where(moves, moved, self.centre))
        self._sum, self._count = None, 0
