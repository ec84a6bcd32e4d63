"""What ``tools/train.py`` does, for use from Python."""

import copy
import logging
import multiprocessing
import os
import os.path as osp
import sys
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.dist import get_world_size
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..datasets.samplers import TooFewImages
from .config_checks import check_config, check_folders
from .errors import ConfigError
from .slurm import slurm_environment

__all__ = [
    'ConfigError',
    'build_runner',
    'check_config',
    'check_folders',
    'dry_run',
    'finish_processes',
    'init_processes',
    'leave_at_once',
    'prepare_training',
    'set_data_root',
    'set_precision',
    'set_resume',
    'set_work_dir',
]

# Without its entry, a default hook of mmengine's would come back.
MMENGINE_HOOKS = (
    'runtime_info',
    'timer',
    'sampler_seed',
    'logger',
    'param_scheduler',
    'checkpoint',
)


def init_processes(cfg: Config, launcher: str) -> None:
    """Join the process group; gloo where there is no CUDA.

    mmengine's own ``init_dist`` needs CUDA with any backend, so on a CPU the
    group is made here, before the Runner finds it.

    Args:
        cfg (Config): gets ``launcher`` and, on a CPU, a model wrapper
            without device ids.
        launcher (str): ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.
    """
    cfg.launcher = launcher
    if launcher == 'none':
        return
    # One seed: samples and iterations draw from it by their own numbers.
    cfg.setdefault('model_wrapper_cfg', ConfigDict())
    cfg.model_wrapper_cfg.setdefault('type', 'MMDistributedDataParallel')
    cfg.model_wrapper_cfg.setdefault('broadcast_buffers', False)
    if torch.cuda.is_available():
        return
    if launcher == 'mpi':
        raise ConfigError(
            "launcher='mpi' needs CUDA. On a CPU use torchrun "
            "(tools/dist_train.sh, launcher='pytorch') or Slurm."
        )
    cfg.model_wrapper_cfg.device_ids = None
    if launcher == 'slurm':
        os.environ.update(slurm_environment(os.environ))
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')


def set_work_dir(cfg: Config, config_path: str, work_dir: str | None) -> None:
    """``--work-dir``, else the config's, else ``work_dirs/<config name>``."""
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        name = osp.splitext(osp.basename(config_path))[0]
        cfg.work_dir = osp.join('work_dirs', name)


def set_data_root(cfg: Any, data_root: str) -> int:
    """Put a folder in the place of every ``data_root``; returns how many."""
    count = 0
    if isinstance(cfg, Config):
        cfg = cfg._cfg_dict
    if isinstance(cfg, dict):
        for key, value in cfg.items():
            if key == 'data_root':
                cfg[key] = data_root
                count += 1
            else:
                count += set_data_root(value, data_root)
    elif isinstance(cfg, (list, tuple)):
        count = sum(set_data_root(item, data_root) for item in cfg)
    return count


def set_resume(cfg: Config, checkpoint: str) -> None:
    """Go on from a checkpoint, or from the newest one (``'auto'``).

    Where there is none yet, the run starts as it would without: from
    ``load_from`` if the config names it. So one command serves to start and
    to go on.
    """
    cfg.resume = True
    hook = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if checkpoint != 'auto':
        cfg.load_from = checkpoint
    elif hook.get('type') == 'AtomicCheckpointHook':
        cfg.resume = 'auto'
    else:  # mmengine would resume from it
        cfg.load_from = None


def set_precision(cfg: Config, precision: str) -> None:
    """Choose the precision of the optimizer wrapper (``--amp``)."""
    if cfg.optim_wrapper.get('type') != 'PretrainOptimWrapper':
        raise ConfigError(
            '--amp sets the precision of a PretrainOptimWrapper, but '
            f"optim_wrapper.type is '{cfg.optim_wrapper.get('type')}'."
        )
    cfg.optim_wrapper.precision = precision


def build_runner(cfg: Config) -> Runner:
    """A Runner from a config, of ``runner_type`` if it names one.

    Hooks that a child config has set to None are left out. mmengine does so
    for its own default hooks, and asserts that no other one is None.
    """
    hooks = cfg.get('default_hooks') or {}
    for name, hook in list(hooks.items()):
        if hook is None and name not in MMENGINE_HOOKS:
            del hooks[name]
    if 'runner_type' in cfg:
        return RUNNERS.build(cfg)
    return Runner.from_cfg(cfg)


def prepare_training(runner: Runner) -> Runner:
    """Build the train loop, and refuse data that give no batch.

    Raises:
        ConfigError: the data set has fewer images than one batch.
    """
    try:
        loop = runner.build_train_loop(runner._train_loop)
    except TooFewImages as error:
        raise ConfigError(str(error)) from error
    runner._train_loop = loop
    loader = loop.dataloader
    if len(loader) == 0:
        processes = get_world_size()
        raise ConfigError(
            f'The training data have {len(loader.dataset):,} images, '
            f'smaller than one batch: {loader.batch_size} on each of '
            f'{processes} process(es), and the last incomplete batch is '
            'dropped. Lower train_dataloader.batch_size, or add images.'
        )
    return runner


def dry_run(cfg: Config, log: Any = print) -> Runner:
    """Build everything that training needs, and train nothing.

    Prints the resolved config, the sizes of the parts, and the effective
    batch and learning rate.
    """
    from .hooks.schedule_hook import ScheduleHook

    log(cfg.pretty_text)
    cfg = copy.deepcopy(cfg)
    runner = prepare_training(build_runner(cfg))
    runner.optim_wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
    if cfg.get('val_cfg'):
        runner.build_val_loop(runner._val_loop)
    for hook in runner.hooks:
        if isinstance(hook, ScheduleHook):
            hook.before_train(runner)  # checks targets, logs lr and batch
    model = runner.model
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    loader = runner.train_dataloader
    log(f'Parameters that are trained: {count / 1e6:.2f} M')
    log(
        f'Images: {len(loader.dataset):,}, batch on this process: '
        f'{loader.batch_size}, iterations: {runner.max_iters:,}'
    )
    log(f'Work folder: {os.path.abspath(cfg.work_dir)} (nothing was trained)')
    return runner


def finish_processes() -> None:
    """End this process with code 0 as soon as all of its group are done.

    Nothing where there is no group.  Python's own way out takes gloo's
    threads down while other processes still talk to them, which aborts a
    process now and then (SIGABRT), after all is saved.
    """
    if not torch.distributed.is_initialized():
        return
    torch.distributed.barrier()
    logging.shutdown()
    leave_at_once(0)


def leave_at_once(code: int) -> None:
    """End this process and its workers, without Python's clearing up."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
