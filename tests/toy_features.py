"""A tiny data set, model and runner for tests of evaluation and hooks."""

import os

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmpretrain.datasets.transforms import PackInputs
from mmpretrain.registry import DATASETS, MODELS, OPTIM_WRAPPERS
from torch import nn

from mim_plugins.evaluation import KNNAccuracy, extract_features
from mim_plugins.evaluation.gathering import gather_vector


@DATASETS.register_module()
class ToyPictures(BaseDataset):
    """Pictures (3, 4, 4) whose class shows in one channel of noise."""

    def __init__(self, split='train', size=24, labels=True, shift=0):
        self.split, self.size = split, size
        self.labels, self.shift = labels, shift
        super().__init__(pipeline=[PackInputs()])

    def load_data_list(self):
        rng = np.random.default_rng(0 if self.split == 'train' else 1)
        rows = []
        for i in range(self.size):
            image = rng.integers(0, 90, (4, 4, 3), dtype=np.uint8)
            image[..., i % 3] += 120
            row = {'img': image, 'img_path': f'{i}.png'}
            if self.labels:
                row['gt_label'] = (i + self.shift) % 3
            rows.append(row)
        return rows

    def _join_prefix(self):
        pass


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(48, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.project(x.flatten(1))))


@MODELS.register_module()
class ToyDistiller(BaseModel):
    """Has what evaluation and hooks use of a pre-training model."""

    def __init__(self, metrics=None):
        super().__init__(
            {
                'type': 'ImgDataPreprocessor',
                'mean': [127.5] * 3,
                'std': [60.0] * 3,
            }
        )
        self.student, self.teacher = Backbone(), Backbone()
        self.teacher.requires_grad_(False)
        self.head = nn.Module()
        self.head.last_layer = nn.Linear(8, 16, bias=False)
        self.metrics = metrics or {}
        self.diagnose = False
        self.diagnosed = []
        self.assignments = None

    def init_weights(self):
        super().init_weights()
        nn.init.orthogonal_(self.student.project.weight)
        self.teacher.load_state_dict(self.student.state_dict())

    def extract_feat(self, inputs, network=None):
        return getattr(self, network or 'teacher')(inputs)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        inputs = torch.stack(list(inputs))
        features = self.student(inputs)
        self.assignments = self.head.last_layer(features).argmax(-1)
        losses = {'loss': features.square().mean()}
        if self.diagnose:
            losses.update(
                {k: torch.tensor(float(v)) for k, v in self.metrics.items()}
            )
        self.diagnosed.append(self.diagnose)
        return losses


@OPTIM_WRAPPERS.register_module()
class ToyOptimWrapper(OptimWrapper):
    """Knows the norm of its gradients."""

    grad_norm = None

    def step(self, **kwargs):
        parameters = [
            p for g in self.optimizer.param_groups for p in g['params']
        ]
        norms = [p.grad.norm() for p in parameters if p.grad is not None]
        self.grad_norm = torch.stack(norms).norm()
        super().step(**kwargs)


def toy_config(work_dir, by_epoch=True, **changes):
    """Keywords of a Runner that trains and validates the toy model."""
    train = {'by_epoch': True, 'max_epochs': 2, 'val_interval': 1}
    if not by_epoch:
        train = {'by_epoch': False, 'max_iters': 12, 'val_interval': 6}
    config = {
        'model': {'type': 'ToyDistiller'},
        'work_dir': str(work_dir),
        'train_cfg': train,
        'train_dataloader': {
            'batch_size': 4,
            'dataset': {'type': 'ToyPictures'},
            'sampler': {
                'type': 'DefaultSampler' if by_epoch else 'InfiniteSampler'
            },
        },
        'optim_wrapper': {
            'type': 'ToyOptimWrapper',
            'optimizer': {'type': 'SGD', 'lr': 0.01},
        },
        'val_dataloader': {
            'batch_size': 5,
            'dataset': {'type': 'ToyPictures', 'split': 'val', 'size': 13},
        },
        'val_cfg': {
            'type': 'KNNLoop',
            'bank_dataloader': {'dataset': {'split': 'train', 'size': 24}},
        },
        'val_evaluator': {'type': 'KNNAccuracy', 'k': [3, 10]},
        'default_hooks': {
            'logger': {'type': 'LoggerHook', 'interval': 3},
            'checkpoint': {'type': 'CheckpointHook', 'interval': 1},
        },
        'default_scope': 'mmpretrain',
        'randomness': {'seed': 0},
        'experiment_name': f'toy-{work_dir}',
        'visualizer': {
            'type': 'Visualizer',
            'name': f'toy-{work_dir}',
            'vis_backends': [{'type': 'LocalVisBackend'}],
        },
    }
    config.update(changes)
    return config


def toy_runner(work_dir, by_epoch=True, **changes):
    return Runner(**toy_config(work_dir, by_epoch, **changes))


def saving_runner(folder, epochs=3, hook=None, by_epoch=True, **changes):
    """One that resumes exactly; it validates only for the best checkpoint."""
    hook = {'type': 'AtomicCheckpointHook', 'interval': 1, **(hook or {})}
    loop = {'type': 'PretrainEpochLoop', 'max_epochs': epochs}
    if not by_epoch:
        loop = {'type': 'PretrainIterLoop', 'max_iters': 6 * epochs}
        hook['by_epoch'] = False
    config = toy_config(folder, by_epoch, **{'train_cfg': loop, **changes})
    config['default_hooks']['checkpoint'] = hook
    if 'save_best' not in hook:
        for key in ('val_dataloader', 'val_cfg', 'val_evaluator'):
            del config[key]
    return Runner.from_cfg(Config(config))


def log_of(folder):
    """Text of the latest run's log."""
    return sorted(folder.glob('*/*.log'))[-1].read_text()


def toy_loader(split, size, batch_size, **options):
    """In the order of the data set, with repeats at the end by default."""
    return Runner.build_dataloader(
        {
            'batch_size': batch_size,
            'dataset': {'type': 'ToyPictures', 'split': split, 'size': size},
            'sampler': {
                'type': 'DefaultSampler',
                'shuffle': False,
                **options,
            },
        }
    )


def evaluate_in_process(rank, world_size, port, folder):
    """What one of several processes finds, into a file."""
    os.environ.update(
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
    )
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    torch.save(evaluate_parts(rank), f'{folder}/{rank}.pt')
    torch.distributed.destroy_process_group()


def evaluate_parts(rank=0):
    """Features, k-NN and a gathered vector, on any number of processes."""
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    model = ToyDistiller()
    # One image a batch: products of matrices differ by their sizes.
    bank = extract_features(model, toy_loader('train', 25, 1))
    queries = extract_features(model, toy_loader('val', 13, 1, round_up=False))
    tiny = extract_features(model, toy_loader('val', 1, 1, round_up=False))
    metric = KNNAccuracy(k=[3, 10], chunks=(4, 7))
    return {
        'bank': vars(bank),
        'queries': vars(queries),
        'tiny': vars(tiny),
        'metrics': metric.evaluate_features(bank, queries),
        'vector': gather_vector(torch.arange(2 + rank)),
    }
