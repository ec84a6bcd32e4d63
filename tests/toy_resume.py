"""A tiny pre-training on tiny pictures, in processes that may be killed."""

import contextlib
import dataclasses
import hashlib
import os
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS
from PIL import Image
from toy_ibot import PATCH, head_config, objective_configs, student_config

IMAGES, BATCH, EPOCHS = 20, 4, 3
LENGTH = IMAGES // BATCH
SIZE = 3 * PATCH
RUNTIME = Path(__file__).parents[1] / 'configs/_base_/default_runtime.py'

# What a student draws in every iteration.
RANDOM = {'drop_path_rate': 0.3}

# One line for each method that is to be exact.
METHODS = {
    'ibot': lambda student=RANDOM, head=None: {
        'type': 'IBOT',
        'student': student_config(**student),
        'head': head_config(**(head or {})),
        'objectives': objective_configs(),
    },
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run depends on."""

    folder: Path
    method: str = 'ibot'
    processes: int = 1
    workers: int = 0
    by_epoch: bool = True
    resume: bool = False
    changes: tuple = ()

    @property
    def final(self) -> Path:
        return self.folder / 'final'

    def again(self, **changes) -> 'Run':
        return dataclasses.replace(self, resume=True, **changes)


def make_images(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(IMAGES):
        path = folder / 'ab'[i % 2] / f'{i}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (16, 18, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


def config(run: Run, images: Path) -> dict:
    loop = {'type': 'PretrainEpochLoop', 'max_epochs': EPOCHS}
    checkpoint = {'type': 'AtomicCheckpointHook', 'max_keep_ckpts': 1}
    if run.by_epoch:
        checkpoint.update(interval=1)
    else:
        loop = {'type': 'PretrainIterLoop', 'max_iters': EPOCHS * LENGTH}
        checkpoint.update(interval=4, by_epoch=False)
    view = {'size': SIZE, 'jitter': {'prob': 0.8, 'brightness': 0.4}}
    settings = {
        'model': METHODS[run.method](),
        'work_dir': str(run.folder),
        'resume': run.resume,
        'train_cfg': loop,
        'train_dataloader': {
            'batch_size': BATCH // run.processes,
            'num_workers': run.workers,
            'persistent_workers': run.workers > 0,
            'drop_last': True,
            'sampler': {'type': 'PassSampler', 'infinite': not run.by_epoch},
            'collate_fn': {'type': 'collate_views'},
            'dataset': {
                'type': 'ViewDataset',
                'source': {
                    'type': 'CustomDataset',
                    'data_root': str(images),
                    'serialize_data': False,
                },
                'views': {
                    'global1': {'group': 'global', **view},
                    'global2': {'group': 'global', **view, 'gray': 0.2},
                    'local': {'num': 2, **view, 'size': 2 * PATCH},
                },
                'mask': {
                    'type': 'RandomMask',
                    'patch_size': PATCH,
                    'ratio': 0.4,
                },
            },
        },
        'optim_wrapper': {
            'type': 'PretrainOptimWrapper',
            'precision': 'fp32',
            'optimizer': {'type': 'AdamW', 'lr': 1e-3, 'weight_decay': 0.1},
            'constructor': 'PretrainOptimConstructor',
            'clip': {'max_norm': 3.0, 'mode': 'tensor'},
        },
        'default_hooks': {
            **Config.fromfile(RUNTIME).default_hooks,
            'logger': {'type': 'LoggerHook', 'interval': 2},
            'checkpoint': checkpoint,
            'schedules': {
                'type': 'ScheduleHook',
                'schedules': {
                    'lr': {'type': 'CosineSchedule', 'base': 1e-3, 'final': 0},
                    'teacher_momentum': {
                        'type': 'CosineSchedule',
                        'target': 'teacher.momentum',
                        'base': 0.9,
                        'final': 1.0,
                    },
                },
            },
        },
        'custom_hooks': [{'type': 'RecordHook'}],
        'default_scope': 'mmpretrain',
        'randomness': {'seed': 3},
        'log_level': 'INFO',
        'experiment_name': f'{run.folder.name}-{os.getpid()}',
    }
    if run.processes > 1:
        settings.update(
            launcher='pytorch',
            model_wrapper_cfg={
                'type': 'MMDistributedDataParallel',
                'device_ids': None,
                'broadcast_buffers': False,
            },
        )
    return settings


@HOOKS.register_module()
class RecordHook(Hook):
    """Loss of each iteration, and in the end a hash of the whole state."""

    priority = 'VERY_HIGH'

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ):
        names = sorted(p.img_path for p in data_batch['data_samples'])
        images = '+'.join(Path(name).stem for name in names)
        loss = float(outputs['loss']).hex()
        rank = os.environ.get('RANK', '0')
        with open(Path(runner.work_dir, f'losses-{rank}'), 'a') as file:
            file.write(f'{runner.iter} {batch_idx} {images} {loss}\n')

    def after_val_epoch(self, runner, metrics=None):
        with open(Path(runner.work_dir, 'validations'), 'a') as file:
            file.write(f'{runner.iter}\n')

    def after_train(self, runner):
        if os.environ.get('RANK', '0') == '0':
            state = [runner.optim_wrapper.state_dict()['state']]
            model = getattr(runner.model, 'module', runner.model)
            state.append(model.state_dict())
            Path(runner.work_dir, 'final').write_text(digest(state))


def digest(value) -> str:
    """SHA-256 of the bytes of all tensors in nested dicts and lists."""
    found = hashlib.sha256()

    def add(part):
        if isinstance(part, dict):
            for key in sorted(part, key=str):
                found.update(str(key).encode())
                add(part[key])
        elif isinstance(part, (list, tuple)):
            for item in part:
                add(item)
        elif isinstance(part, torch.Tensor):
            found.update(part.contiguous().numpy().tobytes())
        else:
            found.update(repr(part).encode())

    add(value)
    return found.hexdigest()


def losses(run: Run) -> dict[str, str]:
    """What each iteration saw and gave; equal wherever it was repeated."""
    found = {}
    for rank in range(run.processes):
        path = run.folder / f'losses-{rank}'
        for line in path.read_text().splitlines() if path.exists() else ():
            iteration, rest = line.split(maxsplit=1)
            if found.setdefault(f'{rank}:{iteration}', rest) != rest:
                raise AssertionError(f'{iteration}: {found} is not {rest}')
    return found


def log(run: Run) -> str:
    """What all processes have printed."""
    return ''.join(p.read_text() for p in sorted(run.folder.glob('log-*')))


def stop_after(iteration: int, number: int = signal.SIGTERM):
    """A fault: the last process gets a signal in the given iteration."""

    def prepare(rank: int) -> None:
        record = RecordHook.after_train_iter

        def and_signal(self, runner, *args, **kwargs):
            record(self, runner, *args, **kwargs)
            last = rank == int(os.environ.get('WORLD_SIZE', 1)) - 1
            if last and runner.iter + 1 == iteration:
                os.kill(os.getpid(), number)

        RecordHook.after_train_iter = and_signal

    return prepare


def start(run: Run, images: Path, fault=None) -> list[int]:
    """Fork the processes of a run; ``fault(rank)`` prepares an accident."""
    run.folder.mkdir(parents=True, exist_ok=True)
    store = run.folder / f'store-{len(list(run.folder.glob("store-*")))}'
    store.touch()
    return [
        _fork(run, images, rank, store, fault) for rank in range(run.processes)
    ]


def _fork(run, images, rank, store, fault) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = _train(run, images, rank, store, fault)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _train(run, images, rank, store, fault) -> int:
    os.setpgid(0, 0)
    log = open(run.folder / f'log-{rank}', 'a', buffering=1)  # noqa: SIM115
    sys.stdout = sys.stderr = log
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    torch.set_num_threads(1)
    # Formatting it for each checkpoint would take longer than the training.
    Config.pretty_text = 'not formatted'
    if run.processes > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(run.processes),
            GLOO_SOCKET_IFNAME='lo',
        )
        torch.distributed.init_process_group(
            'gloo',
            init_method=f'file://{store}',
            rank=rank,
            world_size=run.processes,
        )
    if fault is not None:
        fault(rank)
    from mim_plugins.compat import read_checkpoints_safely
    from mim_plugins.engine.launch import build_runner

    read_checkpoints_safely()
    settings = config(run, images)
    for path, value in run.changes:
        *owners, name = path.split('.')
        target = settings
        for owner in owners:
            target = target[owner]
        target[name] = value
    build_runner(Config(settings)).train()
    return 0


def finish(children: list[int]) -> list[int]:
    """Exit codes, negative for signals; the rest goes when one has failed."""
    codes = {}
    while len(codes) < len(children):
        child, status = os.waitpid(-1, 0)
        if child not in children:
            continue
        codes[child] = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # its workers
        if codes[child] not in (0, 75):
            for other in set(children) - set(codes):
                os.kill(other, signal.SIGKILL)
    return [codes[child] for child in children]


def train(run: Run, images: Path, fault=None) -> list[int]:
    return finish(start(run, images, fault))
