import pytest
import torch
from torch.nn import BatchNorm1d
from toy_ibot import (
    TARGET,
    build_ibot,
    gradients,
    make_batch,
    mask_record,
    objective_configs,
)

from mim_plugins.models.heads.token_norm import TokenBatchNorm


def run(norm, tokens, *valid, chosen=slice(None)):
    """Output, gradients and running statistics of two calls."""
    tokens = tokens.clone().requires_grad_()
    out = norm(norm(tokens, *valid).sin(), *valid)[chosen]
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype)
    (out * weights.view_as(out)).sum().backward()
    return [
        out,
        tokens.grad[chosen],
        norm.weight.grad,
        norm.bias.grad,
        *norm.buffers(),
    ]


def test_padding_is_in_no_statistics():
    tokens = torch.randn(9, 4, dtype=torch.double)
    valid = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0, 1]) > 0
    found = run(TokenBatchNorm(4).double(), tokens, valid, chosen=valid)
    expected = run(BatchNorm1d(4).double(), tokens[valid])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_without_any_token_the_statistics_stay():
    norm = TokenBatchNorm(4)
    before = [buffer.clone() for buffer in norm.buffers()]
    out, grad, *_ = run(norm, torch.randn(5, 4), torch.zeros(5) > 0)
    assert out.isfinite().all() and grad.isfinite().all()
    for now, then in zip(norm.buffers(), before):
        assert torch.equal(now, then)


def test_evaluation_looks_at_no_token():
    norm = TokenBatchNorm(4).eval()
    tokens = torch.randn(5, 4)
    torch.testing.assert_close(
        norm(tokens, torch.arange(5) > 2), norm(tokens), rtol=0, atol=0
    )


@pytest.mark.parametrize('centre_tokens', ['all', 'masked'])
@pytest.mark.parametrize('share', ['all', 'none'])
def test_loss_and_centres_do_not_depend_on_padding(centre_tokens, share):
    results = []
    for padding in (0, 50):
        torch.manual_seed(0)
        patch = {
            'type': 'MaskedPatchDistillation',
            'normalization': TARGET,
            'centre_tokens': centre_tokens,
        }
        model = build_ibot(
            head={'norm': 'bn', 'share': share},
            objectives=objective_configs(patch=patch),
        )
        inputs = make_batch()
        mask = inputs['masks']['global']['mask']
        inputs['masks']['global'] = mask_record(mask, (3, 3), padding)
        parts = model(inputs, mode='loss')
        sum(parts.values()).backward()
        model.after_optimizer_step()
        results.append(
            {**parts, **gradients(model), **dict(model.named_buffers())}
        )
    for name, value in results[0].items():
        torch.testing.assert_close(
            results[1][name], value, msg=lambda m, n=name: f'{n}: {m}'
        )
