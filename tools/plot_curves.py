"""Draw the loss and k-NN curves of a run.

python tools/plot_curves.py work_dirs/RUN
python tools/plot_curves.py work_dirs/RUN --results results.json
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('work_dir', help='work folder, or a scalars.json')
    parser.add_argument('--out', help='PNG; WORK_DIR/curves.png by default')
    parser.add_argument('--knn', default='knn/k20_top1', metavar='METRIC')
    parser.add_argument(
        '--results',
        metavar='JSON',
        help='file of tools/test.py --untrained --pixels --json, for lines '
        'to compare with',
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from mim_plugins.analysis import draw_curves, find_logs, read_curves

    references = {}
    if args.results:
        metrics = json.loads(Path(args.results).read_text())['metrics']
        for name in ('pixels', 'untrained'):
            if args.knn in metrics.get(name, {}):
                references[name] = metrics[name][args.knn]
    folder = Path(args.work_dir)
    out = args.out or (folder if folder.is_dir() else folder.parent) / (
        'curves.png'
    )
    try:
        curves = read_curves(find_logs(folder))
        print(draw_curves(curves, out, args.knn, references))
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
    main()
