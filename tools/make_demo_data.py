"""Write the demo data: pictures of textured shapes in three layouts.

    python tools/make_demo_data.py data/demo

makes data/demo/imagenet, data/demo/ade20k and data/demo/coco. A second call
with the same options finds the data there and does nothing.
"""

import argparse
import importlib
import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType


def load_generator() -> ModuleType:
    """The generator alone, without what else the package imports.

    It needs no torch, and so starts at once and before torch is installed.
    """
    root = Path(__file__).resolve().parents[1]
    folder = root / 'mim_plugins' / 'datasets' / 'demo'
    if not folder.is_dir():
        return importlib.import_module('mim_plugins.datasets.demo')
    spec = importlib.util.spec_from_file_location(
        'demo_data',
        folder / '__init__.py',
        submodule_search_locations=[str(folder)],
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


demo = load_generator()


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = demo.DemoDataConfig()
    add = parser.add_argument
    add('out', help='the folder to make')
    add('--train', type=int, default=default.train, help='training pictures')
    add('--val', type=int, default=default.val, help='validation pictures')
    add('--size', type=int, default=default.size, help='side, ImageNet layout')
    add(
        '--scene-size',
        type=int,
        default=default.scene_size,
        help='side, ADE20K and COCO layouts',
    )
    add(
        '--scene-things',
        type=int,
        nargs=2,
        metavar=('FEWEST', 'MOST'),
        default=default.scene_things,
        help='things in a picture of the ADE20K and COCO layouts; with 1 1 '
        'all three layouts show the same drawings',
    )
    add('--seed', type=int, default=default.seed)
    add('--quality', type=int, default=default.quality, help='of the JPEGs')
    add('--layouts', nargs='+', choices=demo.LAYOUTS, default=default.layouts)
    add(
        '--workers',
        type=int,
        default=available_cores(),
        help='processes; the files do not depend on it',
    )
    add(
        '--overwrite',
        action='store_true',
        help='write anew, replacing the demo data that is there',
    )
    return parser.parse_args(argv)


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Progress:
    """Pictures done, rate and time left: a line that is written over in a
    terminal, and a line every tenth part elsewhere."""

    def __init__(self):
        self.start = self.last = time.monotonic()
        self.tenth = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        live = sys.stderr.isatty()
        tenth = 10 * done // total
        due = now - self.last > 0.2 if live else tenth > self.tenth
        if not due and done < total:
            return
        self.last, self.tenth = now, tenth
        rate = done / max(now - self.start, 1e-6)
        print(
            f'demo data: {done:,} of {total:,} pictures, {60 * rate:,.0f} a '
            f'minute, {(total - done) / rate:.0f} s left',
            end='\r' if live and done < total else '\n',
            file=sys.stderr,
            flush=True,
        )


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    # So that a stopped run, too, clears what it has half written.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        config = demo.DemoDataConfig(
            train=args.train,
            val=args.val,
            size=args.size,
            scene_size=args.scene_size,
            scene_things=tuple(args.scene_things),
            seed=args.seed,
            quality=args.quality,
            layouts=tuple(args.layouts),
        )
        written = demo.make_demo_data(
            args.out,
            config,
            workers=args.workers,
            overwrite=args.overwrite,
            progress=Progress(),
        )
    except (demo.DemoDataError, ValueError, OSError) as error:
        sys.exit(f'make_demo_data: {error}')
    except KeyboardInterrupt:
        sys.exit('make_demo_data: stopped; nothing was kept')
    how = 'written' if written else 'there already, left as it is'
    folders = ', '.join(config.layouts)
    print(f'demo data in {args.out} ({folders}): {how}')


if __name__ == '__main__':
    main()
