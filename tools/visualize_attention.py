"""Draw the last layer's attention of [CLS] on a few images.

python tools/visualize_attention.py CONFIG CHECKPOINT
python tools/visualize_attention.py CONFIG CHECKPOINT --images a.jpg b.jpg
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
    parser.add_argument('checkpoint')
    parser.add_argument(
        '--images',
        nargs='+',
        help='image files; by default NUM of the validation images, evenly '
        'spread over the data set',
    )
    parser.add_argument('--num', type=int, default=6)
    parser.add_argument(
        '--size',
        type=int,
        nargs='+',
        help='height and width (or one number) of the pictures for the '
        'network; by default twice the size that validation uses',
    )
    parser.add_argument('--network', choices=['teacher', 'student'])
    parser.add_argument('--out', default='attention.png')
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    from mim_plugins.analysis.attention import visualize_checkpoint
    from mim_plugins.checkpoints import CheckpointError
    from mim_plugins.compat import read_checkpoints_safely

    read_checkpoints_safely()
    cfg = Config.fromfile(args.config)
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    size = args.size
    if size is not None:
        size = size[0] if len(size) == 1 else tuple(size[:2])
    try:
        out = visualize_checkpoint(
            cfg,
            args.checkpoint,
            args.out,
            paths=args.images,
            num=args.num,
            size=size,
            network=args.network,
            device=args.device,
        )
    except (CheckpointError, FileNotFoundError, ValueError) as error:
        sys.exit(f'{type(error).__name__}: {error}')
    print(out)


if __name__ == '__main__':
    main()
