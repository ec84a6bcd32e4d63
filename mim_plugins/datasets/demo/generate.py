"""Writing a whole data set, from a few numbers, by several processes."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from . import layouts as files
from .draw import Drawing, draw
from .manifest import (
    MANIFEST,
    DemoDataConfig,
    check_existing,
    write_manifest,
)
from .scene import DEMO_CLASSES, Scene, random_scene

Progress = Callable[[int, int], None]


def make_scene(
    seed: int, split: str, index: int, things: tuple[int, int] = (1, 1)
) -> Scene:
    """The scene of one picture; depends on nothing but the arguments.

    The first thing's class is ``index`` modulo the number of classes, so
    that classes are balanced; those of the others are random.
    """
    several = tuple(things) != (1, 1)
    stream = (seed, files.SPLITS.index(split), index, int(several))
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(stream)))
    labels = [index % len(DEMO_CLASSES)]
    if not several:
        return random_scene(rng, labels)
    more = rng.integers(things[0], things[1], endpoint=True) - 1
    labels += rng.integers(len(DEMO_CLASSES), size=more).tolist()
    return random_scene(rng, labels, radius=(0.1, 0.22))


def _write(
    task: tuple[str, int], root: Path, config: DemoDataConfig
) -> tuple[str, int, list[dict]]:
    """Write one picture in every layout; gives its COCO annotations."""
    split, index = task
    if 'imagenet' in config.layouts:
        scene, drawing = _drawn(config, split, index, config.size, (1, 1))
        path = files.imagenet_path(root, split, scene.things[0].label, index)
        files.save_picture([path], drawing.image, config.quality)
    if config.layouts == ('imagenet',):
        return split, index, []
    scene, drawing = _drawn(
        config, split, index, config.scene_size, config.scene_things
    )
    paths = []
    if 'ade20k' in config.layouts:
        image_path, label_path = files.ade20k_paths(root, split, index)
        paths.append(image_path)
        files.save_label_map(label_path, files.label_map(scene, drawing))
    if 'coco' in config.layouts:
        paths.append(files.coco_path(root, split, index))
    files.save_picture(paths, drawing.image, config.quality)
    return split, index, files.coco_annotations(scene, drawing)


def _drawn(
    config: DemoDataConfig,
    split: str,
    index: int,
    size: int,
    things: tuple[int, int],
) -> tuple[Scene, Drawing]:
    scene = make_scene(config.seed, split, index, things)
    return scene, draw(scene, size, config.supersample)


def _start_worker() -> None:
    # A thread pool of OpenCV's does not survive a fork; an interrupt is the
    # parent's to handle.
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _results(
    write: Callable, tasks: list[tuple[str, int]], workers: int
) -> Iterator[tuple[str, int, list[dict]]]:
    if workers <= 1:
        yield from map(write, tasks)
        return
    # Forked workers start at once; spawned ones would import everything.
    methods = multiprocessing.get_all_start_methods()
    method = 'fork' if 'fork' in methods else methods[0]
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context(method), _start_worker
    )
    try:
        yield from pool.map(write, tasks, chunksize=16)
    finally:
        pool.shutdown(cancel_futures=True)


def _write_all(
    root: Path, config: DemoDataConfig, workers: int, progress: Progress
) -> None:
    files.make_folders(root, config.layouts)
    tasks = [('train', i) for i in range(config.train)]
    tasks += [('val', i) for i in range(config.val)]
    write = partial(_write, root=root, config=config)
    annotations: dict[str, list] = {split: [] for split in files.SPLITS}
    for done, (split, index, items) in enumerate(
        _results(write, tasks, workers), start=1
    ):
        annotations[split].append((index, items))
        progress(done, len(tasks))
    if 'coco' in config.layouts:
        for split, pictures in annotations.items():
            path = files.coco_json_path(root, split)
            files.write_coco_json(path, split, config.scene_size, pictures)


def make_demo_data(
    out: str | os.PathLike,
    config: DemoDataConfig | None = None,
    workers: int = 1,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> bool:
    """Write a demo data set, or find that it is there already.

    The pictures go to a folder beside ``out`` that gets its name when all is
    written, so that ``out`` never holds a part of them.

    Args:
        out (path): the folder to make.
        config (DemoDataConfig, optional): what to write.
        workers (int): processes; the files do not depend on it.
        overwrite (bool): write anew, and replace the demo data that is
            there. A folder that is not empty and holds no manifest is never
            replaced.
        progress (callable, optional): called with pictures done and in all.

    Returns:
        bool: True if it was written, False if it was there.

    Raises:
        DemoDataError: there is something else at ``out``.
    """
    out = Path(os.path.abspath(out))
    config = config or DemoDataConfig()
    replaceable = overwrite and (out / MANIFEST).is_file()
    if not replaceable and check_existing(out, config):
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    partial_out = out.with_name(f'.{out.name}.partial-{os.getpid()}')
    shutil.rmtree(partial_out, ignore_errors=True)
    try:
        partial_out.mkdir()
        _write_all(
            partial_out, config, workers, progress or (lambda done, all_: None)
        )
        write_manifest(partial_out, config)
        _put_in_place(partial_out, out)
    finally:
        shutil.rmtree(partial_out, ignore_errors=True)
    return True


def _put_in_place(whole: Path, out: Path) -> None:
    """Give a folder its final name; what had it before goes."""
    if not out.exists():
        whole.rename(out)
        return
    old = out.with_name(f'.{out.name}.old-{os.getpid()}')
    out.rename(old)
    try:
        whole.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)
