"""Train a model: ``python tools/train.py CONFIG [options]``."""

import argparse
import os
import sys

# A checkpoint is data: nothing in it may run (must be set before torch).
os.environ.setdefault('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..'))

from mmengine.config import Config, DictAction  # noqa: E402


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description='Train a model')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('--work-dir', help='folder for logs and checkpoints')
    parser.add_argument(
        '--data-root',
        metavar='DIR',
        help='put DIR in the place of every data_root of the config',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from the newest whole checkpoint of the work folder (at '
        'the first start, from load_from of the config), or from the one '
        'that is named',
    )
    parser.add_argument(
        '--amp',
        nargs='?',
        const='auto',
        choices=['auto', 'bf16', 'fp16', 'fp32'],
        help='mixed precision; auto takes what is fast on the device',
    )
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='print the resolved config, the effective lr and batch, build '
        'everything, and stop',
    )
    parser.add_argument(
        '--replay',
        metavar='FOLDER',
        help='compute the losses of a step again that was not finite, from '
        'WORK_DIR/non_finite/iter_N (with --amp in another precision), and '
        'stop',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='override settings of the config, as key=value',
    )
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args(argv)
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def train(args: argparse.Namespace) -> None:
    from mim_plugins.engine import launch
    from mim_plugins.engine.config_keys import refusals_explained

    try:
        cfg = Config.fromfile(args.config)
    except FileNotFoundError:
        raise launch.ConfigError(
            f'There is no config {args.config}.'
        ) from None
    if args.data_root and not launch.set_data_root(cfg, args.data_root):
        raise launch.ConfigError(
            f'{args.config} has no data_root that --data-root could replace.'
        )
    if args.cfg_options:
        cfg.merge_from_dict(args.cfg_options)
    launch.set_work_dir(cfg, args.config, args.work_dir)
    if args.amp:
        launch.set_precision(cfg, args.amp)
    if args.resume:
        launch.set_resume(cfg, args.resume)
    launch.check_config(cfg)
    launch.check_folders(cfg)
    launch.init_processes(cfg, args.launcher)
    if args.replay:
        from mim_plugins.engine.replay import print_replay

        print_replay(cfg, args.replay, args.amp)
        return
    with refusals_explained(cfg, launch.ConfigError):
        if args.dry_run:
            launch.dry_run(cfg)
            return
        launch.prepare_training(launch.build_runner(cfg)).train()


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    import mim_plugins  # noqa: F401  (registers the parts)
    from mim_plugins.checkpoints import CheckpointError
    from mim_plugins.compat import read_checkpoints_safely
    from mim_plugins.datasets.transforms import UnreadableImage
    from mim_plugins.engine.hooks import NonFiniteLoss
    from mim_plugins.engine.hooks.preemption_hook import EXIT_CODE
    from mim_plugins.engine.launch import (
        ConfigError,
        finish_processes,
        leave_at_once,
    )

    read_checkpoints_safely()
    try:
        train(args)
    except (
        CheckpointError,
        ConfigError,
        FileNotFoundError,
        NonFiniteLoss,
    ) as error:
        sys.exit(f'{type(error).__name__}: {error}')
    except UnreadableImage as error:
        name = type(error).__name__
        # a worker's traceback may stand before it
        sentence = str(error).strip().rpartition(f'{name}: ')[2]
        sys.exit(f'{name}: {sentence}')
    except SystemExit as stop:
        if stop.code == EXIT_CODE:
            # at the same moment as the others: srun kills those that come
            # later, and reports that instead of the code
            leave_at_once(stop.code)
        raise
    if args.launcher != 'none':
        finish_processes()


if __name__ == '__main__':
    main()
