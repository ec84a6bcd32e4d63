"""Images a second and core of a config's views, against plain torchvision.

    python tools/benchmarks/dataloading.py --config CONFIG

The reference (mim_plugins.testing.literal_views) makes the same views by
torchvision's transforms on PIL images, to normalised float tensors, as the
official codes do. Ours end as uint8, for the model normalises on its device.
Both read the same files, draw masks by the same generator, and take turns on
one thread.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cv2  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import (  # noqa: E402
    describe_machine,
    interleave,
    load_config,
    make_parser,
    print_table,
    write_json,
)
from mmengine.config import Config  # noqa: E402
from mmengine.registry import FUNCTIONS  # noqa: E402
from mmpretrain.registry import DATASETS  # noqa: E402
from PIL import Image  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

import mim_plugins  # noqa: E402, F401
from mim_plugins.datasets import SampleKey, ViewDataset  # noqa: E402
from mim_plugins.datasets.transforms.pixels import as_pixels  # noqa: E402
from mim_plugins.testing.literal_views import literal_transform  # noqa: E402

PACKAGES = ('torch', 'torchvision', 'pillow', 'opencv-python', 'numpy')
WIDTH, HEIGHT = 500, 375
Work = Callable[[], object]


def write_pictures(folder: Path, number: int) -> None:
    """JPEGs of ImageNet's usual size: smooth ground, edges, noise."""
    rng = np.random.default_rng(0)
    for k in range(number):
        ground = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        pixels = cv2.resize(ground, (WIDTH, HEIGHT), None, 0, 0, 2)
        pixels = pixels.astype(np.float32)
        for _ in range(12):
            centre = rng.integers((WIDTH, HEIGHT)).tolist()
            axes = rng.integers(10, 120, 2).tolist()
            colour = rng.integers(0, 256, 3).tolist()
            angle = int(rng.integers(180))
            cv2.ellipse(pixels, centre, axes, angle, 0, 360, colour, -1)
        pixels += rng.normal(0, 8, pixels.shape)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(folder / f'{k:04}.jpg', quality=90)


def build_dataset(cfg: Config, folder: str) -> ViewDataset:
    """The config's training set over the images in a folder."""
    source = dict(
        type='CustomDataset', data_root=folder, with_label=False, pipeline=[]
    )
    settings = dict(cfg.train_dataloader.dataset, source=source)
    if settings['type'] != 'ViewDataset':
        raise SystemExit(
            f'the training set of this config is a {settings["type"]}, not a '
            'ViewDataset: it has no views to measure.'
        )
    dataset = DATASETS.build(settings)
    dataset.full_init()
    return dataset


def build_collate(cfg: Config) -> Callable:
    """The config's collate function with its options."""
    options = dict(cfg.train_dataloader.collate_fn)
    function = FUNCTIONS.get(options.pop('type'))
    return lambda batch: function(batch, **options)


def our_batch(dataset: ViewDataset, collate: Callable, size: int) -> Work:
    """One batch after the other, over the files and pass after pass."""
    keys = (
        SampleKey(index, epoch=epoch)
        for epoch in itertools.count()
        for index in range(len(dataset))
    )
    return lambda: collate([dataset[next(keys)] for _ in range(size)])


def literal_batch(cfg: Config, dataset: ViewDataset, size: int) -> Work:
    """The same with the reference's views."""
    normalise = cfg.model.get('data_preprocessor') or {}
    mean = normalise.get('mean', (123.675, 116.28, 103.53))
    std = normalise.get('std', (58.395, 57.12, 57.375))
    transforms: dict[str, list] = {}
    for name, view in cfg.train_dataloader.dataset.views.items():
        if view:
            transforms.setdefault(view.get('group', name), []).extend(
                [literal_transform(view, mean, std)] * view.get('num', 1)
            )
    indices = itertools.cycle(range(len(dataset)))
    rng = np.random.default_rng(0)

    def sample() -> dict:
        path = dataset.get_data_info(next(indices))['img_path']
        with Image.open(path) as file:
            image = file.convert('RGB')
        views = {
            group: [transform(image) for transform in members]
            for group, members in transforms.items()
        }
        return {'views': views, **draw_masks(dataset, views, rng)}

    return lambda: default_collate([sample() for _ in range(size)])


def draw_masks(
    dataset: ViewDataset, views: Mapping, rng: np.random.Generator
) -> dict:
    """What the config's mask generator adds to a sample."""
    if dataset.mask is None:
        return {}
    drawn = {'views': views, 'rng': rng, 'epoch': 0}
    return {'masks': dataset.mask(drawn)['masks']}


def parts_of(
    dataset: ViewDataset, collate: Callable, size: int
) -> dict[str, Work]:
    """The parts of a batch of ours, each on its own."""
    paths = [
        dataset.get_data_info(k % len(dataset))['img_path']
        for k in range(size)
    ]
    rng = np.random.default_rng(0)
    augmentations = [a for group in dataset.groups.values() for a in group]

    def decode() -> list[np.ndarray]:
        records = [{'img_path': path} for path in paths]
        return [as_pixels(dataset.load(record)['img']) for record in records]

    images = decode()
    plans = [
        [(a, a.draw(*image.shape[1::-1], rng)) for a in augmentations]
        for image in images
    ]

    def crop() -> list[list[np.ndarray]]:
        return [
            [a.crop(image, parameters) for a, parameters in plan]
            for image, plan in zip(images, plans)
        ]

    crops = crop()

    def recolour() -> list[list[np.ndarray]]:
        return [
            [a.recolour(view, drawn) for view, (a, drawn) in zip(views, plan)]
            for views, plan in zip(crops, plans)
        ]

    samples = [dataset[SampleKey(k % len(dataset))] for k in range(size)]
    views = samples[0]['inputs']['views']
    return {
        'read and decode': decode,
        'crops': crop,
        'photometric': recolour,
        'masks': lambda: [draw_masks(dataset, views, rng) for _ in samples],
        'collate': lambda: collate(samples),
    }


def measure(cfg: Config, folder: str, size: int, rounds: int) -> dict:
    """All figures of the images in a folder."""
    dataset, collate = build_dataset(cfg, folder), build_collate(cfg)
    seconds = interleave(
        {
            'ours': our_batch(dataset, collate, size),
            'reference': literal_batch(cfg, dataset, size),
            **parts_of(dataset, collate, size),
        },
        rounds,
    )
    ours, reference = seconds.pop('ours'), seconds.pop('reference')
    parts = {name: 1000 * part / size for name, part in seconds.items()}
    parts['rest'] = 1000 * ours / size - sum(parts.values())
    return {
        'images_per_second': size / ours,
        'reference_images_per_second': size / reference,
        'speedup': reference / ours,
        'parts_ms': parts,
    }


def report(result: dict) -> None:
    """Print the figures."""
    for name, key in (('ours', ''), ('reference', 'reference_')):
        rate = result[f'{key}images_per_second']
        print(f'{name}: {rate:.1f} images/s, {1000 / rate:.2f} ms an image')
    print(f'speedup: {result["speedup"]:.2f}')
    for name, milliseconds in result['parts_ms'].items():
        print(f'    {name}: {milliseconds:.2f} ms an image')


def describe_views(dataset_cfg: Mapping) -> str:
    """Number and size of the views, such as '2 x 224, 10 x 96'."""
    counts: dict[str, int] = {}
    for view in dataset_cfg['views'].values():
        if view:
            size = str(view['size'])
            counts[size] = counts.get(size, 0) + view.get('num', 1)
    return ', '.join(f'{n} x {size}' for size, n in counts.items() if n)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__, batch_size=16, rounds=9, timed='batches')
    parser.add_argument(
        '--images',
        metavar='DIR',
        help='folder of images (default: generated JPEGs of 500x375)',
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    cfg = load_config(args.config)
    if args.images and not Path(args.images).is_dir():
        sys.exit(f'There is no folder {args.images} (--images).')
    with tempfile.TemporaryDirectory() as folder:
        if args.images is None:
            write_pictures(Path(folder), args.batch_size)
        result = measure(
            cfg, args.images or folder, args.batch_size, args.rounds
        )
    print_table(
        {
            **describe_machine(PACKAGES),
            'config': args.config,
            'views': describe_views(cfg.train_dataloader.dataset),
            'images': args.images or f'generated, {WIDTH}x{HEIGHT}',
            'batch': args.batch_size,
            'rounds': args.rounds,
        }
    )
    report(result)
    if args.json:
        write_json(args.json, result)


if __name__ == '__main__':
    main()
