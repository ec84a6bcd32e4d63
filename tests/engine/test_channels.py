"""Training and evaluation on images of any number of channels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mim_plugins.engine import launch
from mim_plugins.engine.errors import ConfigError

ROOT = Path(__file__).parents[2]
PLAIN = {'jitter': {'brightness': 0.4, 'contrast': 0.4}, 'blur': {}}


def write_images(root, channels, number=8):
    rng = np.random.default_rng(0)
    for i in range(number):
        path = root / f'class{i % 2}' / str(i)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (20, 24, channels), np.uint8)
        if channels in (1, 4):
            Image.fromarray(pixels.squeeze()).save(path.with_suffix('.png'))
        else:
            np.save(path, pixels)
    return root


def config_of(tmp_path, channels, **changes):
    """The demo's config, tiny, for images of so many channels."""
    cfg = Config.fromfile(ROOT / 'configs/ibot/ibot_demo.py')
    load = {'type': 'LoadImage', 'channels': channels}
    data = {
        'type': 'CustomDataset',
        'data_root': str(write_images(tmp_path / 'data', channels)),
        'extensions': ('.png', '.npy'),
    }
    views = {
        'global1': {'group': 'global', 'size': 16, **PLAIN},
        'global2': {'group': 'global', 'size': 16, 'solarize': {}},
        'local': {'size': 8, 'num': 2},
    }
    pipeline = [load, *cfg.val_dataloader.dataset.pipeline[1:]]
    cfg.merge_from_dict(
        {
            'work_dir': str(tmp_path / 'run'),
            'experiment_name': tmp_path.name,
            'model.student.in_channels': channels,
            'model.student.arch.embed_dims': 12,
            'model.student.arch.num_layers': 1,
            'model.student.arch.feedforward_channels': 12,
            'model.head': {'out_dim': 8, 'hidden_dim': 8, 'bottleneck_dim': 4},
            'model.data_preprocessor': {
                'type': 'ViewDataPreprocessor',
                'mean': [100.0 + i for i in range(channels)],
                'std': [50.0 + i for i in range(channels)],
            },
            'train_dataloader.batch_size': 4,
            'train_dataloader.num_workers': 0,
            'train_dataloader.persistent_workers': False,
            'train_dataloader.dataset.load': load,
            'train_cfg.max_epochs': 1,
            'val_evaluator.k': [2],
            'default_hooks.freeze_last_layer': None,
            **changes,
        }
    )
    cfg.train_dataloader.dataset.source = data
    cfg.train_dataloader.dataset.views = views
    cfg.val_dataloader.dataset = {**data, 'pipeline': pipeline}
    cfg.val_cfg.bank_dataloader = {'dataset': {'test_mode': True}}
    return cfg


@pytest.mark.parametrize('channels', [1, 4, 6])
def test_a_run_learns_from_every_channel_and_evaluates(channels, tmp_path):
    cfg = config_of(tmp_path, channels)
    launch.check_config(cfg)
    runner = launch.prepare_training(launch.build_runner(cfg))
    batch = next(iter(runner.train_dataloader))
    assert batch['inputs']['views']['global'].shape == (8, channels, 16, 16)
    runner.model.init_weights()
    before = runner.model.student.patch_embed.projection.weight.clone()
    runner.train()
    after = runner.model.student.patch_embed.projection.weight
    assert before.shape == (12, channels, 8, 8)
    assert torch.isfinite(after).all()
    moved = (after - before).abs().amax((0, 2, 3))
    assert moved.shape == (channels,) and (moved > 0).all()
    assert any('knn/k2' in key for key in runner.message_hub.log_scalars)


def test_each_channel_has_its_own_mean_and_deviation(tmp_path):
    runner = launch.build_runner(config_of(tmp_path, 6))
    levels = torch.full((1, 6, 2, 2), 150, dtype=torch.uint8)
    got = runner.model.data_preprocessor.normalise(levels)[0, :, 0, 0]
    want = torch.tensor([(150.0 - 100 - i) / (50 + i) for i in range(6)])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    'setting', ['gray', 'jitter.saturation', 'jitter.hue']
)
def test_colour_operations_are_refused_where_there_is_no_rgb(
    setting, tmp_path
):
    key = f'train_dataloader.dataset.views.local.{setting}'
    cfg = config_of(tmp_path, 4)
    cfg.merge_from_dict({key: 0})
    launch.check_config(cfg)
    cfg.merge_from_dict({key: 0.2})
    with pytest.raises(ConfigError, match=f'{key} needs RGB'):
        launch.check_config(cfg)


def test_means_for_other_channels_are_refused(tmp_path):
    changes = {'model.data_preprocessor.mean': [1.0, 2.0, 3.0]}
    with pytest.raises(ConfigError, match='mean is 3,.* Make them equal'):
        launch.check_config(config_of(tmp_path, 4, **changes))
    one = {'mean': [127.0], 'std': [60.0], 'type': 'ViewDataPreprocessor'}
    launch.check_config(
        config_of(tmp_path, 4, **{'model.data_preprocessor': one})
    )
