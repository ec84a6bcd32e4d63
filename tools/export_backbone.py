"""Write the backbone of a pre-training checkpoint to a file of its own.

The file loads into ``mmpretrain.VisionTransformer`` with every key matched.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mim_plugins.checkpoints import CheckpointError, save_backbone  # noqa: E402


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('checkpoint', help='the pre-training checkpoint')
    parser.add_argument('out', help='the file to write')
    parser.add_argument(
        '--network',
        choices=('teacher', 'student'),
        default='teacher',
        help='whose backbone (default: teacher)',
    )
    parser.add_argument(
        '--prefix',
        default='',
        help="put before every name; 'backbone.' for whole classifiers",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        meta = save_backbone(
            args.checkpoint, args.out, args.network, args.prefix
        )
    except CheckpointError as error:
        raise SystemExit(f'{type(error).__name__}: {error}') from None
    shape = ', '.join(f'{key} {value}' for key, value in meta.items())
    print(f'{args.out}: {shape}')


if __name__ == '__main__':
    main()
