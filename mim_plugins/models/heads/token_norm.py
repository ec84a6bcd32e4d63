"""Batch norm over tokens, with the statistics of all processes."""

import torch
from mmengine import dist
from torch import Tensor, nn


class SumOverProcesses(torch.autograd.Function):
    """Sum over all processes, through which gradients flow.

    As in torch's ``SyncBatchNorm`` the gradient is the sum of the processes'
    gradients. Any backend will do; one process is left as it is.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm over every token of ``(..., C)``, on all processes.

    N processes with B / N images each compute what one with B computes, also
    if some have no tokens; torch's ``SyncBatchNorm`` does so on GPUs only.
    Where no process has any, the running statistics stay. Statistics are
    float32 at least.
    """

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Normalise.

        Args:
            x (Tensor): ``(..., C)``.
            valid (Tensor, optional): bool ``(...)``; tokens that are False
                are normalised too, but do not count in the statistics.

        Returns:
            Tensor: ``(..., C)``, of the type of x.
        """
        rows = x.flatten(0, -2)
        alone = valid is None and dist.get_world_size() == 1
        if not self.training or alone:
            return super().forward(rows).view_as(x)
        if rows.dtype != torch.float64:
            rows = rows.float()
        counts = rows.new_ones(len(rows), 1)
        if valid is not None:
            counts = valid.flatten().to(rows.dtype).unsqueeze(1)
        total = torch.cat([(rows * counts).sum(0), counts.sum(0)])
        total = SumOverProcesses.apply(total)
        count = total[-1].detach()
        mean = total[:-1] / count.clamp_min(1)
        centred = rows - mean
        squares = (centred.square() * counts).sum(0)
        variance = SumOverProcesses.apply(squares) / count.clamp_min(1)
        self._follow(mean.detach(), variance.detach(), count)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale + self.bias).to(x.dtype).view_as(x)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics, as torch does."""
        any_token = count > 0
        self.num_batches_tracked.add_(any_token)
        unbiased = variance * (count / (count - 1).clamp_min(1))
        for running, new in (
            (self.running_mean, mean),
            (self.running_var, unbiased),
        ):
            share = any_token.to(running.dtype) * self.momentum
            # not for autograd to see: torch's batch norm, which a call
            # without `valid` goes through, keeps them for its backward
            running.data.lerp_(new.to(running.dtype), share)
