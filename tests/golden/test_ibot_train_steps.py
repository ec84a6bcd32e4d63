"""Whole training steps against the official training function."""

import pytest
import torch
from golden_files import golden
from mmpretrain.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS

from mim_plugins.checkpoints import ibot_backbone_to_ours, ibot_head_to_ours
from mim_plugins.engine.schedules import temperature_schedule

DATA = golden('ibot_train_steps')
HP = DATA.hp()
CASES = DATA.cases('losses')
DTYPES = [torch.float64, torch.float32]


def convert(state: dict, dtype: torch.dtype) -> tuple[dict, dict]:
    """Official names to (backbone, head) of this package."""
    parts = {'backbone': {}, 'head': {}}
    for name, value in state.items():
        part, _, rest = name.partition('.')
        parts[part][rest] = torch.from_numpy(value).to(dtype)
    return (
        ibot_backbone_to_ours(parts['backbone']),
        ibot_head_to_ours(parts['head']),
    )


def is_separate(case: str) -> bool:
    """Whether [CLS] and patches have a last layer each in the student."""
    return f'{case}/student_init/head.last_layer2.weight_v' in DATA


def build_model(case: str, dtype: torch.dtype):
    target = dict(type='CentreSharpen')
    model = MODELS.build(
        dict(
            type='IBOT',
            student=dict(
                type='MaskedVisionTransformer',
                arch=dict(
                    embed_dims=HP['D'],
                    num_layers=HP['depth'],
                    num_heads=HP['heads'],
                    feedforward_channels=4 * HP['D'],
                ),
                img_size=HP['img'],
                patch_size=HP['ps'],
                pos_interpolation='ibot',
            ),
            head=dict(
                type='IBOTHead',
                out_dim=HP['K'],
                patch_out_dim=HP['KP'],
                hidden_dim=HP['hid'],
                bottleneck_dim=HP['bot'],
                share='mlp' if is_separate(case) else 'all',
            ),
            teacher=dict(head=dict(share='all')),
            objectives=dict(
                cls=dict(
                    type='ClsDistillation',
                    normalization=target,
                    weight=HP['lambda1'],
                ),
                patch=dict(
                    type='MaskedPatchDistillation',
                    normalization=target,
                    weight=HP['lambda2'],
                ),
            ),
        )
    ).to(dtype)
    backbone, head = convert(DATA.sub(f'{case}/student_init'), dtype)
    model.student.load_state_dict(backbone)
    model.head.load_state_dict(head)
    model.teacher.copy_from(model.student, model.head)
    return model


def build_optimizer(model):
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(
        dict(
            type='PretrainOptimConstructor',
            optim_wrapper_cfg=dict(
                type='PretrainOptimWrapper',
                optimizer=dict(type='AdamW', lr=1.0, weight_decay=1.0),
                clip=dict(max_norm=HP['clip'], mode='tensor'),
            ),
        )
    )
    return constructor(model)


def batch(step: int, dtype: torch.dtype) -> dict:
    masks = DATA.tensor(f'data{step}/masks')
    grid = tuple(masks.shape[-2:])
    mask = masks.flatten(0, 1).flatten(1)
    share = mask.to(dtype) / mask.sum(1, keepdim=True).clamp(min=1)
    crops = DATA.tensor(f'data{step}/global', dtype)
    local = DATA.tensor(f'data{step}/local', dtype)
    return dict(
        views={'global': crops.flatten(0, 1), 'local': local.flatten(0, 1)},
        num_views={'global': len(crops), 'local': len(local)},
        masks={
            'global': dict(
                mask=mask,
                grid=grid,
                index=mask.flatten().nonzero().flatten(),
                weight=share[mask],
                count=int(mask.sum()),
            )
        },
    )


def run(case: str, dtype: torch.dtype):
    """Train for all stored iterations; returns the model and the losses."""
    model = build_model(case, dtype)
    wrapper = build_optimizer(model)
    warmup, epochs = HP['warmup_teacher_temp_epochs'], HP['epochs']
    cls_temp = temperature_schedule(
        HP['warmup_teacher_temp'], HP['teacher_temp'], warmup, epochs
    )
    patch_temp = temperature_schedule(
        HP['warmup_teacher_patch_temp'],
        HP['teacher_patch_temp'],
        warmup,
        epochs,
    )
    losses = []
    for step in range(epochs * HP['iters_per_epoch']):
        epoch = step // HP['iters_per_epoch']
        frozen = epoch < HP['freeze_last_layer']
        wrapper.frozen = ('last_layer',) if frozen else ()
        objectives = model.objectives
        objectives['cls'].normalization.temperature = float(cls_temp[epoch])
        objectives['patch'].normalization.temperature = float(
            patch_temp[epoch]
        )
        model.teacher.momentum = float(DATA['m'][step])
        for group in wrapper.optimizer.param_groups:
            group['lr'] = float(DATA['lr'][step]) * group['lr_mult']
            group['weight_decay'] = (
                float(DATA['wd'][step]) * group['decay_mult']
            )
        parts = model(batch(step, dtype), mode='loss')
        total = parts['loss_cls'] + parts['loss_patch']
        wrapper.update_params(total)
        model.after_optimizer_step()
        losses.append(
            [float(x) for x in (parts['loss_cls'], parts['loss_patch'], total)]
        )
    return model, torch.tensor(losses, dtype=torch.float64)


def assert_parameters(module, want: dict, atol: float) -> None:
    """Equal but for the key part of qkv biases, which is rounding noise."""
    got = module.state_dict()
    checked = 0
    for name, value in want.items():
        mine = got[name]
        if name.endswith('attn.qkv.bias'):
            width = len(value) // 3
            keep = torch.ones(len(value), dtype=torch.bool)
            keep[width : 2 * width] = False
            mine, value = mine[keep], value[keep]
        torch.testing.assert_close(mine, value, rtol=0, atol=atol, msg=name)
        checked += 1
    assert checked > 10


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('case', CASES)
def test_training_matches_official(case, dtype):
    model, losses = run(case, dtype)
    double = dtype == torch.float64
    torch.testing.assert_close(
        losses,
        DATA.tensor(f'{case}/losses', torch.float64),
        rtol=0 if double else 1e-4,
        atol=1e-8 if double else 0,
    )
    atol = 1e-6 if double else 1e-4
    for name, backbone, head in (
        ('student_final', model.student, model.head),
        ('teacher_final', model.teacher.backbone, model.teacher.head),
    ):
        want_backbone, want_head = convert(DATA.sub(f'{case}/{name}'), dtype)
        assert_parameters(backbone, want_backbone, atol)
        own = head.state_dict()
        want_head = {k: v for k, v in want_head.items() if k in own}
        assert set(want_head) >= {'mlp.0.weight', 'last_layer.weight'}
        for key, value in want_head.items():
            torch.testing.assert_close(
                own[key], value, rtol=0, atol=atol, msg=key
            )
    for objective, name in (
        ('cls', 'center_final'),
        ('patch', 'center2_final'),
    ):
        torch.testing.assert_close(
            model.objectives[objective].normalization.centre,
            DATA.tensor(f'{case}/{name}', dtype).flatten(),
            rtol=0,
            atol=1e-8 if double else 1e-5,
        )
