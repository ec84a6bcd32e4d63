"""Pre-train a small iBOT on generated pictures and show what it learned.

Called by tools/demo.sh; needs nothing but the packages of pre-training.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = 'configs/ibot/ibot_demo.py'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--work-dir',
        default='work_dirs/demo',
        help='folder of all results (default: %(default)s)',
    )
    parser.add_argument(
        '--data',
        default='data/demo',
        help='folder of the generated pictures (default: %(default)s)',
    )
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--epochs', type=int, help="a shorter or longer run than the config's"
    )
    return parser.parse_args()


def run(title: str, *command: str) -> None:
    """Run a tool of this folder, its output in view; stop if it fails."""
    print(f'\n=== {title}', flush=True)
    script, *rest = command
    done = subprocess.run([sys.executable, ROOT / 'tools' / script, *rest])
    if done.returncode:
        sys.exit(f'demo: {title} failed (see above).')


def table(summary: dict) -> str:
    """What a reader wants to know, in the terminal."""
    rows = [
        ('raw pixels', summary['knn_pixels']),
        ('the network untrained', summary['knn_untrained']),
        ('the network trained', summary['knn_trained']),
    ]
    lines = [f'  {name:<24}{value:6.1f} %' for name, value in rows]
    return '\n'.join(lines)


def main() -> None:
    start = float(os.environ.get('MIM_STARTED', time.time()))
    args = parse_args()
    work_dir, data = Path(args.work_dir), Path(args.data)
    data_root = f'{data / "imagenet"}/'
    options = [
        f'randomness.seed={args.seed}',
        f'train_dataloader.dataset.source.data_root={data_root}train',
        f'val_dataloader.dataset.data_root={data_root}val',
        f'test_dataloader.dataset.data_root={data_root}val',
    ]
    for loop in ('val_cfg', 'test_cfg'):
        key = f'{loop}.bank_dataloader.dataset.data_root'
        options.append(f'{key}={data_root}train')
    train_options = list(options)
    if args.epochs:
        train_options.append(f'train_cfg.max_epochs={args.epochs}')

    run(
        'Demo pictures', 'make_demo_data.py', str(data),
        '--layouts', 'imagenet',
    )  # fmt: skip
    run(
        'Pre-training', 'train.py', CONFIG, '--work-dir', str(work_dir),
        '--cfg-options', *train_options,
    )  # fmt: skip
    checkpoint = (work_dir / 'last_checkpoint').read_text().strip()
    results = work_dir / 'knn.json'
    run(
        'k-NN', 'test.py', CONFIG, checkpoint, '--untrained', '--pixels',
        '--json', str(results), '--work-dir', str(work_dir / 'test'),
        '--cfg-options', *options,
    )  # fmt: skip
    metrics = json.loads(results.read_text())['metrics']
    knn = {name: values['knn/k20_top1'] for name, values in metrics.items()}
    curves, attention = work_dir / 'curves.png', work_dir / 'attention.png'
    run(
        'Curves', 'plot_curves.py', str(work_dir), '--out', str(curves),
        '--results', str(results),
    )  # fmt: skip
    run(
        'Attention maps', 'visualize_attention.py', CONFIG, checkpoint,
        '--out', str(attention), '--cfg-options', *options,
    )  # fmt: skip

    summary = {
        'knn_pixels': knn['pixels'],
        'knn_untrained': knn['untrained'],
        'knn_trained': knn['trained'],
        'seconds': round(time.time() - start, 1),
        'checkpoint': checkpoint,
        'pictures': [str(curves), str(attention)],
    }
    path = work_dir / 'summary.json'
    path.write_text(json.dumps(summary, indent=2) + '\n')
    print(f'\nTop-1 accuracy of k-NN (k = 20), {summary["seconds"]:.0f} s:')
    print(table(summary))
    print(
        f'\nMade:\n  checkpoint         {checkpoint}\n'
        f'  k-NN table         {results}\n'
        f'  loss and k-NN      {curves}\n'
        f'  attention maps     {attention}\n'
        f'  all of it          {path}'
    )


if __name__ == '__main__':
    main()
