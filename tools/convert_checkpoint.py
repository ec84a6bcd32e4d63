"""Carry a checkpoint from one library's layout to another's.

    python tools/convert_checkpoint.py SOURCE OUT --to FORMAT

SOURCE: a pre-training checkpoint of this project or an exported backbone, an
official iBOT, DINO or MAE file, a ViT of timm or of Hugging Face (.pth, .bin,
.safetensors, or the folder). Its layout is found by itself. What every key
became is printed; see mim_plugins/checkpoints/README.md.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mim_plugins.checkpoints import CheckpointError, convert  # noqa: E402
from mim_plugins.checkpoints.convert import FORMATS  # noqa: E402
from mim_plugins.checkpoints.layouts import READERS  # noqa: E402


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('source', help='the file (or folder) to read')
    parser.add_argument(
        'out', help='the file to write; the folder for huggingface'
    )
    parser.add_argument('--to', required=True, choices=FORMATS)
    parser.add_argument(
        '--from',
        dest='names',
        choices=READERS,
        help='whose names the backbone has; by default found by its keys',
    )
    parser.add_argument(
        '--network',
        choices=('teacher', 'student'),
        help='the backbone of one network; by default both with their heads '
        'for ours and ibot, the teacher for the others',
    )
    parser.add_argument(
        '--allow-unplaced',
        action='store_true',
        help='go on without keys that the target has no place for',
    )
    parser.add_argument(
        '--num-heads',
        type=int,
        help='attention heads, for huggingface and unusual architectures',
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        result = convert(
            args.source,
            args.out,
            args.to,
            args.network,
            args.allow_unplaced,
            args.num_heads,
            args.names,
        )
    except CheckpointError as error:
        sys.exit(f'{type(error).__name__}: {error}')
    print(f'{args.out}: {result}')


if __name__ == '__main__':
    main()
