"""Evaluate a checkpoint with the test (or validation) of a config.

python tools/test.py CONFIG CHECKPOINT
python tools/test.py CONFIG CHECKPOINT --untrained --pixels --json out.json
"""

import argparse
import os
import sys
from pathlib import Path

# Before torch is imported: no file may run code on being loaded.
os.environ['TORCH_FORCE_WEIGHTS_ONLY_LOAD'] = '1'
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmengine.config import Config, DictAction  # noqa: E402


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('config')
    parser.add_argument('checkpoint', nargs='?', help='of the same config')
    parser.add_argument(
        '--network',
        choices=['teacher', 'student'],
        help="which network; the model's choice (teacher) by default",
    )
    parser.add_argument(
        '--untrained',
        action='store_true',
        help='also the network with initial weights',
    )
    parser.add_argument(
        '--pixels',
        nargs='?',
        type=int,
        const=32,
        metavar='SIZE',
        help='also raw pictures, reduced to SIZE pixels (default 32)',
    )
    parser.add_argument('--json', metavar='OUT', help='write the results')
    parser.add_argument('--work-dir', help='folder of the logs')
    parser.add_argument(
        '--data-root',
        metavar='DIR',
        help='put DIR in the place of every data_root of the config',
    )
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
    )
    parser.add_argument('--local-rank', '--local_rank', type=int, default=0)
    args = parser.parse_args(argv)
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    if not (args.checkpoint or args.untrained or args.pixels):
        parser.error('name a checkpoint, or give --untrained or --pixels')
    return args


def evaluate(args: argparse.Namespace) -> None:
    from mmengine.dist import is_main_process
    from mmengine.fileio import dump

    from mim_plugins.engine.launch import (
        build_runner,
        init_processes,
        set_data_root,
        set_work_dir,
    )
    from mim_plugins.evaluation.offline import (
        format_table,
        prepare_test,
        run_test,
    )

    cfg = Config.fromfile(args.config)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    if args.data_root is not None:
        set_data_root(cfg, args.data_root)
    set_work_dir(cfg, args.config, args.work_dir)
    prepare_test(cfg, args.network)
    init_processes(cfg, args.launcher)
    results = run_test(
        build_runner(cfg),
        args.checkpoint,
        untrained=args.untrained,
        pixels=args.pixels is not None,
        pixel_size=args.pixels,
    )
    if is_main_process():
        print(format_table(results))
        if args.json:
            facts = {'config': args.config, 'checkpoint': args.checkpoint}
            Path(args.json).parent.mkdir(parents=True, exist_ok=True)
            dump({**facts, 'metrics': results}, args.json, indent=2)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    from mim_plugins.checkpoints import CheckpointError
    from mim_plugins.compat import read_checkpoints_safely
    from mim_plugins.engine.launch import ConfigError, finish_processes

    read_checkpoints_safely()
    try:
        evaluate(args)
    except (CheckpointError, ConfigError, FileNotFoundError) as error:
        sys.exit(f'{type(error).__name__}: {error}')
    if args.launcher != 'none':
        finish_processes()


if __name__ == '__main__':
    main()
