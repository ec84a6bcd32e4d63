"""Keys that nothing reads."""

from pathlib import Path

import pytest
from mmengine.config import Config

from mim_plugins.engine.config_keys import (
    near_misses,
    refusals_explained,
    unknown_keys,
)

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / 'configs').rglob('*.py'))


def demo(**changes) -> Config:
    cfg = Config.fromfile(ROOT / 'configs/ibot/ibot_demo.py')
    cfg.merge_from_dict(changes)
    return cfg


def test_no_shipped_config_is_warned_of():
    assert len(CONFIGS) > 50
    for path in CONFIGS:
        assert list(unknown_keys(Config.fromfile(path))) == [], path


@pytest.mark.parametrize(
    'path, near',
    [
        # the Runner's own
        ('optim_wraper', 'optim_wrapper'),
        ('custom_hook', 'custom_hooks'),
        ('model_wraper_cfg', 'model_wrapper_cfg'),
        ('randomness.sed', 'seed'),
        ('randomness.diff_rank_seeds', 'diff_rank_seed'),
        ('env_cfg.cudnn_bench', 'cudnn_benchmark'),
        ('env_cfg.mp_cfg.opencv_num_thread', 'opencv_num_threads'),
        ('env_cfg.dist_cfg.time_out', 'timeout'),
        ('log_processor.window_sizes', 'window_size'),
        ('auto_scale_lr.base_batchsize', 'base_batch_size'),
        # loaders and loops
        ('train_dataloader.batchsize', 'batch_size'),
        ('train_dataloader.num_worker', 'num_workers'),
        ('val_dataloader.persistent_worker', 'persistent_workers'),
        ('train_dataloader.sampler.shufle', 'shuffle'),
        ('train_dataloader.collate_fn.pad_multiples', 'pad_multiple'),
        ('train_cfg.max_epoch', 'max_epochs'),
        ('train_cfg.val_intervall', 'val_interval'),
        ('val_cfg.bank_loader', 'bank_dataloader'),
        # parts with a type
        ('model.student.patch_sise', 'patch_size'),
        ('model.student.drop_path', None),
        ('model.student.drop_path_rates', 'drop_path_rate'),
        ('model.head.out_dims', 'out_dim'),
        ('model.objectives.cls.weights', 'weight'),
        ('model.objectives.cls.loss.temperatur', 'temperature'),
        ('train_dataloader.dataset.replacement', 'replacements'),
        ('train_dataloader.dataset.source.with_labels', 'with_label'),
        ('train_dataloader.dataset.mask.patchsize', 'patch_size'),
        ('train_dataloader.dataset.mask.start_epochs', 'start_epoch'),
        ('optim_wrapper.precison', 'precision'),
        ('optim_wrapper.optimizer.weight_decai', 'weight_decay'),
        ('optim_wrapper.clip.maxnorm', 'max_norm'),
        ('default_hooks.logger.intervall', 'interval'),
        ('default_hooks.unreadable.max_shares', 'max_share'),
        ('default_hooks.freeze_last_layer.epoch', 'epochs'),
        ('default_hooks.schedules.schedules.lr.warmup_epoch', 'warmup_epochs'),
        # sections without one
        ('train_dataloader.dataset.views.global1.solarise', 'solarize'),
        ('train_dataloader.dataset.views.local.scales', 'scale'),
        ('model.data_preprocessor.means', 'mean'),
    ],
)
def test_a_slip_is_found_with_the_known_key(path, near):
    found = list(unknown_keys(demo(**{path: 1})))
    assert [(key.path, key.near) for key in found if key.near or not near] == [
        (path, near)
    ]
    misses = near_misses(demo(**{path: 1}))
    assert [key.path for key in misses] == ([path] if near else [])
    if near:
        assert str(misses[0]).startswith(f'{path}: ')
        assert str(misses[0]).endswith(f"Did you mean '{near}'?")


@pytest.mark.parametrize(
    'path, near',
    [
        ('default_hooks.loger', 'logger'),
        ('default_hooks.schedules.schedules.teacher_momentums',
         'teacher_momentum'),
        ('model.objectives.patchs', 'patch'),
    ],
)  # fmt: skip
def test_a_slip_in_the_name_of_a_part_is_found(path, near):
    found = near_misses(demo(**{f'{path}.weight': 2}))
    assert [(key.path, key.near) for key in found] == [(path, near)]


@pytest.mark.parametrize(
    'changes',
    [
        # variables of a config
        {'train_pipelines': [1], 'dataset_type': 'a', 'max_epochs': 3},
        # what others take out before a type is built
        {'train_dataloader.num_batch_per_epoch': 3},
        {'default_hooks.logger.priority': 'LOW'},
        {'optim_wrapper.paramwise_cfg': dict(custom_keys=dict(norm=1))},
        {'env_cfg.dist_cfg.timeout': 10},
        # names that are the user's own, types from elsewhere
        {'train_dataloader.dataset.views.global3': dict(size=32)},
        {'custom_hooks': [dict(type='NotRegistered', intervall=0)]},
        {'model.backbone': dict(type='NotRegistered', in_chanels=3)},
    ],
)
def test_what_is_read_or_may_be_is_no_finding(changes):
    found = list(unknown_keys(demo(**changes)))
    # IBOT has no backbone, but what is in one is not known
    assert [key.path for key in found] == [
        key for key in changes if key == 'model.backbone'
    ]


def refuse(key):
    def part(known=1):
        return known

    return part(**{key: 1})


def test_a_refusal_names_the_place_in_the_config():
    cfg = demo(**{'model.student.foo': 1, 'model.head.foo': 2})
    with (
        pytest.raises(ValueError) as caught,
        refusals_explained(cfg, ValueError),
    ):
        refuse('foo')
    assert str(caught.value) == (
        "model.student.foo: MaskedVisionTransformer has no key 'foo'. "
        "model.head.foo: IBOTHead has no key 'foo'."
    )


def test_other_type_errors_pass():
    cfg = demo(**{'model.student.foo': 1})
    for action in (lambda: refuse('bar'), lambda: 1 + 'a'):
        with pytest.raises(TypeError), refusals_explained(cfg, ValueError):
            action()
