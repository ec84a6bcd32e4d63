"""iBOT's loss, gradients and centres against the official code."""

import pytest
import torch
from golden_files import golden
from mmpretrain.registry import MODELS

from mim_plugins.engine.schedules import temperature_schedule

DATA = golden('ibot_loss')
CASES = DATA.cases('hp')
DTYPES = [torch.float64, torch.float32]


def build(hp: dict, dtype: torch.dtype):
    def objective(kind, loss, dim, momentum, weight):
        return MODELS.build(
            dict(
                type=kind,
                weight=weight,
                normalization=dict(
                    type='CentreSharpen', dim=dim, momentum=momentum
                ),
                loss=dict(type=loss, temperature=hp['student_temp']),
            )
        ).to(dtype)

    cls = objective(
        'ClsDistillation',
        'CrossViewCrossEntropy',
        hp['K'],
        hp['center_momentum'],
        hp['lambda1'],
    )
    patch = objective(
        'MaskedPatchDistillation',
        'SoftCrossEntropy',
        hp['KP'],
        hp['center_momentum2'],
        hp['lambda2'],
    )
    return cls, patch


def temperatures(hp: dict) -> tuple:
    warmup = hp['warmup_teacher_temp_epochs']
    cls = temperature_schedule(
        hp['warmup_teacher_temp'], hp['teacher_temp'], warmup, hp['epochs']
    )
    patch = temperature_schedule(
        hp['warmup_teacher_patch_temp'],
        hp['teacher_patch_temp'],
        warmup,
        hp['epochs'],
        delay=hp['mim_start_epoch'],
    )
    return cls, patch


def run_call(case, call, cls, patch, hp, dtype):
    """One call of the official loss; returns losses and student leaves."""
    at = f'{case}/{call}'

    def leaf(name):
        if f'{at}/{name}' not in DATA:
            return None
        return DATA.tensor(f'{at}/{name}', dtype).requires_grad_()

    s_cls, s_patch = leaf('student_cls'), leaf('student_patch')
    s_local = leaf('student_local_cls')
    t_cls = DATA.tensor(f'{at}/teacher_cls', dtype)
    t_patch = DATA.tensor(f'{at}/teacher_patch', dtype)
    epoch = int(DATA[f'{at}/epoch'])
    for objective, table in zip((cls, patch), temperatures(hp)):
        objective.normalization.temperature = float(table[epoch])

    everyone = s_cls if s_local is None else torch.cat([s_cls, s_local])
    loss_cls = cls.weight * cls.from_logits(
        everyone.unflatten(0, (-1, hp['B'])),
        t_cls.unflatten(0, (-1, hp['B'])),
    )
    mask = DATA.tensor(f'{at}/masks').flatten(2).flatten(0, 1)
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    weight = (mask.to(dtype) / count)[mask]
    loss_patch = patch.weight * patch.from_logits(
        s_patch[mask], t_patch[mask], weight, len(mask)
    )
    patch.normalization.observe(t_patch)
    (loss_cls + loss_patch).backward()
    for objective in (cls, patch):
        objective.after_optimizer_step()
    leaves = dict(
        student_cls=s_cls, student_patch=s_patch, student_local_cls=s_local
    )
    return loss_cls.detach(), loss_patch.detach(), leaves


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('case', CASES)
def test_ibot_loss_matches_official(case, dtype):
    hp = DATA.hp(case)
    cls, patch = build(hp, dtype)
    double = dtype == torch.float64
    scalar = dict(rtol=1e-10 if double else 2e-6, atol=1e-12)
    grad = dict(rtol=1e-10 if double else 1e-4, atol=1e-12 if double else 1e-5)
    centre = dict(rtol=0, atol=1e-12 if double else 1e-6)
    calls = [k.split('/')[1] for k in DATA.arrays if k.startswith(f'{case}/')]
    calls = sorted({c for c in calls if c.startswith('call')})
    assert calls
    for call in calls:
        at = f'{case}/{call}'
        loss_cls, loss_patch, leaves = run_call(
            case, call, cls, patch, hp, dtype
        )
        for got, name in (
            (loss_cls, 'loss_cls'),
            (loss_patch, 'loss_patch'),
            (loss_cls + loss_patch, 'total'),
        ):
            torch.testing.assert_close(
                got, DATA.tensor(f'{at}/{name}', dtype), **scalar
            )
        for name, leaf in leaves.items():
            if leaf is not None:
                want = DATA.tensor(f'{at}/grad_{name}', dtype)
                got = (
                    torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                )
                torch.testing.assert_close(got, want, **grad)
        for objective, name in (
            (cls, 'center_after'),
            (patch, 'center2_after'),
        ):
            torch.testing.assert_close(
                objective.normalization.centre,
                DATA.tensor(f'{at}/{name}', dtype).flatten(),
                **centre,
            )
