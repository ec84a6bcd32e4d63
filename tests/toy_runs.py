"""Runs of the demo configs, with their default hooks, at a toy's size."""

import copy
import os
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmpretrain.registry import MODELS
from PIL import Image

from mim_plugins.engine.launch import build_runner
from mim_plugins.models import ClsDistillation

ROOT = Path(__file__).parents[1]
IMAGES, BATCH = 20, 4
LENGTH = IMAGES // BATCH

# One line for each method.
METHODS = {'ibot': 'configs/ibot/ibot_demo.py'}


def make_images(folder, white=None):
    """Noise; the one of number ``white`` is what ``FragileLoss`` meets."""
    rng = np.random.default_rng(0)
    (folder / 'a').mkdir(parents=True)
    for i in range(IMAGES):
        pixels = rng.integers(0, 200, (40, 40, 3), dtype=np.uint8)
        if i == white:
            pixels[:] = 255
        Image.fromarray(pixels).save(folder / 'a' / f'{i:02}.png')
    return folder


def toy_config(folder, images, method='ibot', processes=1, **options):
    """The config of a demo, small; ``options`` as of ``--cfg-options``."""
    cfg = Config.fromfile(ROOT / METHODS[method])
    cfg.merge_from_dict(
        {
            'work_dir': str(folder),
            'experiment_name': f'{folder.name}-{id(cfg)}',
            'log_level': 'WARNING',
            'visualizer.vis_backends': [{'type': 'LocalVisBackend'}],
            'model.student.arch.embed_dims': 24,
            'model.student.arch.num_layers': 2,
            'model.student.arch.feedforward_channels': 32,
            'model.head': {
                'out_dim': 16,
                'hidden_dim': 24,
                'bottleneck_dim': 8,
            },
            'train_dataloader.batch_size': BATCH // processes,
            'train_dataloader.num_workers': 0,
            'train_dataloader.persistent_workers': False,
            'train_dataloader.sampler.shuffle': False,
            'train_dataloader.dataset.source.data_root': str(images),
            'train_cfg.max_epochs': 1,
            'default_hooks.logger.interval': 3,
            'default_hooks.checkpoint.interval': 1,
            'default_hooks.schedules.schedules.lr.warmup_epochs': 0,
            'optim_wrapper.precision': 'fp32',
            **{
                f'{key}_{part}': None
                for key in ('val', 'test')
                for part in ('cfg', 'dataloader', 'evaluator')
            },
            **options,
        }
    )
    if processes > 1:
        cfg.launcher = 'pytorch'
        cfg.model_wrapper_cfg = {
            'type': 'MMDistributedDataParallel',
            'device_ids': None,
            'broadcast_buffers': False,
        }
    return cfg


def toy_runner(*args, hooks=(), **kwargs):
    runner = build_runner(toy_config(*args, **kwargs))
    for hook in hooks:
        runner.register_hook(hook)
    return runner


@MODELS.register_module()
class FragileLoss(ClsDistillation):
    """A part of the loss that breaks on a white picture.

    Args:
        breaks: ``'nan'``; ``'inf'``, whose gradient is finite; or
            ``'gradient'``, where the loss is finite.
    """

    def __init__(self, breaks='nan', **kwargs):
        super().__init__(**kwargs)
        self.breaks = breaks

    def forward(self, outputs):
        loss = super().forward(outputs)
        white = (outputs.views['global'] > 2.0).flatten(1).all(1).any()
        if self.breaks == 'gradient':
            zero = 0 * loss.square() + torch.where(white, 0.0, 1.0)
            return loss + zero.sqrt() - torch.where(white, 0.0, 1.0)
        if self.breaks == 'inf':
            return torch.where(white, torch.inf, loss)
        return loss * torch.where(white, torch.nan, 1.0)


class SnapshotHook(Hook):
    """Keeps the state after each iteration."""

    # after OptimizerStepHook, before NonFiniteHook
    priority = 'NORMAL'

    def __init__(self):
        self.states = []

    def before_train(self, runner):
        self.states = [snapshot(runner)]

    def after_train_iter(self, runner, *args, **kwargs):
        self.states.append(snapshot(runner))


def snapshot(runner):
    model = getattr(runner.model, 'module', runner.model)
    state = {'model': model.state_dict()}
    state['optimizer'] = runner.optim_wrapper.state_dict()
    return copy.deepcopy(state)


def hook_of(runner, kind):
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, kind))
    return hook


def assert_equal(left, right, path='state'):
    """Nested states, equal bit by bit; NaN equals nothing."""
    assert type(left) is type(right), path
    if isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_equal(left[key], right[key], f'{path}.{key}')
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for i, pair in enumerate(zip(left, right)):
            assert_equal(*pair, f'{path}[{i}]')
    elif isinstance(left, torch.Tensor):
        assert torch.equal(left, right), path
    else:
        assert left == right, path


def in_processes(function, folder, *args, processes=2):
    """What ``function(rank, *args)`` returns in processes of a group."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.start_processes(
        _join,
        (function, processes, str(folder), args),
        processes,
        start_method='fork',
    )
    return [
        torch.load(folder / f'result-{rank}.pth', weights_only=False)
        for rank in range(processes)
    ]


def _join(rank, function, processes, folder, args):
    torch.set_num_threads(1)
    os.environ.update(LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME='lo')
    torch.distributed.init_process_group(
        'gloo',
        init_method=f'file://{folder}/store',
        rank=rank,
        world_size=processes,
    )
    # The group ends with the process: with torch 2.4, destroying one of gloo
    # hangs now and then.
    torch.save(function(rank, *args), f'{folder}/result-{rank}.pth')
