"""Every iBOT config builds, and trains a step at toy size."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from mmengine.config import Config
from mmengine.registry import FUNCTIONS
from mmpretrain.registry import (
    DATASETS,
    HOOKS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
)
from PIL import Image

import mim_plugins  # noqa: F401
from mim_plugins.datasets.samplers import SampleKey
from mim_plugins.engine.launch import check_config

ROOT = Path(__file__).parents[2] / 'configs'
RUNS = sorted(ROOT.glob('ibot/*.py'))
ABLATIONS = sorted(ROOT.glob('ibot/ablations/*.py'))
INDEX = yaml.safe_load((ROOT / 'ibot/ablations/index.yml').read_text())
ARCH = dict(
    embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32
)
HEAD = dict(hidden_dim=20, bottleneck_dim=8, out_dim=24)


def name_of(path: Path) -> str:
    return path.stem


@pytest.fixture(scope='module')
def pictures(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp('pictures')
    rng = np.random.default_rng(0)
    for i in range(4):
        pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f'{i}.png')
    return str(folder)


@pytest.fixture(scope='module')
def dino_checkpoint(tmp_path_factory) -> str:
    """A toy DINO run's file, as the tokenizer ablations need it."""
    model = MODELS.build(shrink(load(ROOT / 'ibot/ablations/dino.py')).model)
    path = tmp_path_factory.mktemp('dino') / 'epoch_1.pth'
    torch.save(dict(state_dict=model.state_dict()), path)
    return str(path)


@pytest.fixture(scope='module')
def dalle_checkpoint(tmp_path_factory) -> str:
    encoder = MODELS.build(dict(type='DALL-E', **DALLE))
    path = tmp_path_factory.mktemp('dalle') / 'encoder.pth'
    torch.save(encoder.state_dict(), path)
    return str(path)


DALLE = dict(n_hid=8, n_blk_per_group=1, vocab_size=HEAD['out_dim'])


def load(path: Path) -> Config:
    return Config.fromfile(str(path))


def shrink_student(student: dict) -> None:
    student.update(arch=ARCH, img_size=16, patch_size=4)


def shrink(cfg: Config) -> Config:
    """The same choices, with few and small layers and crops."""
    shrink_student(cfg.model.student)
    cfg.model.head.update(HEAD)
    cfg.model.head.pop('patch_out_dim', None)
    dataset = cfg.train_dataloader.dataset
    for view in dataset.views.values():
        if view is not None:
            view.update(num=min(view.num, 2))
            view.update(size=16 if view.group == 'global' else 8)
    if dataset.get('mask'):
        dataset.mask.patch_size = 4
    return cfg


def toy_batch(cfg: Config, pictures: str) -> dict:
    dataset = cfg.train_dataloader.dataset
    dataset.source = dict(
        type='CustomDataset', data_root=pictures, with_label=False
    )
    dataset = DATASETS.build(dataset)
    samples = [dataset[SampleKey(i, 0, 50, 0)] for i in range(4)]
    return FUNCTIONS.get(cfg.train_dataloader.collate_fn.type)(samples)


@pytest.mark.parametrize('path', RUNS + ABLATIONS, ids=name_of)
def test_config_trains_a_step(
    path, pictures, dino_checkpoint, dalle_checkpoint
):
    cfg = load(path)
    check_config(cfg)
    patch = cfg.model.objectives.get('patch') or {}
    shrink(cfg)
    check_config(cfg)
    tokenizer = patch.get('tokenizer')
    if tokenizer and tokenizer.type == 'DALLETokenizer':
        tokenizer.update(checkpoint=dalle_checkpoint, encoder=DALLE)
    elif tokenizer:
        shrink_student(tokenizer.backbone)
        tokenizer.head.update(HEAD)
        tokenizer.checkpoint = dino_checkpoint
    model = MODELS.build(cfg.model)
    model.init_weights()
    wrapper_cfg = cfg.optim_wrapper.copy()
    wrapper_cfg.precision = 'fp32'
    wrapper = OPTIM_WRAPPER_CONSTRUCTORS.build(
        dict(type=wrapper_cfg.pop('constructor'), optim_wrapper_cfg=wrapper_cfg)
    )(model)
    schedule_cfg = cfg.default_hooks.schedules
    schedule_cfg.iters_per_epoch = 1
    schedules = HOOKS.build(schedule_cfg)
    for name, target in schedules.targets.items():
        if target is not None:
            part = model
            for attribute in target.split('.'):
                part = getattr(part, attribute)
            assert isinstance(part, float), (name, target)

    before = [p.detach().clone() for p in model.student.parameters()]
    data = model.data_preprocessor(toy_batch(cfg, pictures), True)
    losses = model(**data, mode='loss')
    total, _ = model.parse_losses(losses)
    total.backward()
    unused = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    assert not unused, 'several processes would wait for these for ever'
    wrapper.zero_grad()
    wrapper.update_params(model.parse_losses(model(**data, mode='loss'))[0])
    model.after_optimizer_step()
    assert set(losses) == {f'loss_{name}' for name in model.objectives}
    assert torch.isfinite(total) and total > 0
    moved = [
        not torch.equal(old, new)
        for old, new in zip(before, model.student.parameters())
    ]
    assert sum(moved) > len(moved) / 2


def test_index_names_every_ablation():
    assert sorted(row['config'] for row in INDEX) == [
        path.name for path in ABLATIONS
    ]
    for row in INDEX:
        assert row['source'] and row['changes']
        assert set(row.get('published', {})) <= {'knn', 'linear'}


@pytest.mark.parametrize('path', ABLATIONS, ids=name_of)
def test_ablations_differ_from_each_other(path):
    """Each config resolves to something that no other one is."""
    mine = load(path).to_dict()
    same = [
        other.name
        for other in ABLATIONS
        if other != path and resolved(other) == resolved(path)
    ]
    assert mine and not same


_RESOLVED: dict[Path, dict] = {}


def resolved(path: Path) -> dict:
    if path not in _RESOLVED:
        cfg = load(path).to_dict()
        keys = ('model', 'train_dataloader', 'default_hooks', 'train_cfg')
        _RESOLVED[path] = {key: cfg[key] for key in keys}
    return _RESOLVED[path]


def test_base_lr_is_scaled_by_the_batch():
    from mim_plugins.engine.schedules import build_schedule

    cfg = load(ROOT / 'ibot/ibot_vit-small-p16_16xb64-amp-coslr-800e_in1k.py')
    lr = dict(cfg.default_hooks.schedules.schedules.lr)
    assert build_schedule(lr).scaled_base(16 * 64) == pytest.approx(2e-3)
