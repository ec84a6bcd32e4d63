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

    N processes with B / N images each compute what one with B computes;
    torch's ``SyncBatchNorm`` does so on GPUs only. Statistics are float32 at
    least.
    """

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        if not self.training or dist.get_world_size() == 1:
            return super().forward(rows).view_as(x)
        if rows.dtype != torch.float64:
            rows = rows.float()
        total = torch.cat([rows.sum(0), rows.new_full((1,), len(rows))])
        total = SumOverProcesses.apply(total)
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = rows - mean
        variance = SumOverProcesses.apply(centred.square().sum(0)) / count
        self._follow(mean.detach(), variance.detach(), count)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale + self.bias).to(x.dtype).view_as(x)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics, as torch does."""
        self.num_batches_tracked.add_(1)
        unbiased = variance * (count / (count - 1).clamp_min(1))
        for running, new in (
            (self.running_mean, mean),
            (self.running_var, unbiased),
        ):
            running.lerp_(new.to(running.dtype), self.momentum)
