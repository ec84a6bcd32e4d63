"""What a folder of images holds besides the images."""

import os
from collections import Counter
from collections.abc import Iterator

from mmengine.dist import is_main_process
from mmengine.logging import print_log
from mmpretrain.datasets import CustomDataset
from torch.utils.data import Dataset


def report_left_out(source: Dataset) -> None:
    """Log the number of images, and of the files that are none of them."""
    if not is_main_process():
        return
    left_out = count_left_out(source)
    if left_out:
        kinds = ', '.join(f'{n:,} {k}' for k, n in sorted(left_out.items()))
        root = os.path.normpath(source.img_prefix)
        print_log(
            f'{root}: {len(source):,} images; files that were left out: '
            f'{kinds}.',
            'current',
        )


def count_left_out(source: Dataset) -> Counter:
    """Files in the folder of a data set that are not part of it, by reason.

    Args:
        source (Dataset): looked at if it is mmpretrain's ``CustomDataset``,
            or derived from it, and lists a local folder. The entries of a
            list file are the user's own choice.

    Returns:
        Counter: 'hidden', 'broken link', 'outside the class folders', or the
        extension ('without an extension') -> number of files.
    """
    if (
        not isinstance(source, CustomDataset)
        or source.ann_file
        or not os.path.isdir(source.img_prefix)
    ):
        return Counter()
    counts: Counter = Counter()
    for entry, depth in walk(source.img_prefix):
        if is_image(source, entry):
            if source.with_label and depth == 0:
                counts['outside the class folders'] += 1
        elif entry.name.startswith('.'):
            counts['hidden'] += 1
        elif source.is_valid_file(entry.name):
            counts['broken link'] += 1
        else:
            extension = os.path.splitext(entry.name)[1].lower()
            counts[extension or 'without an extension'] += 1
    return counts


def is_image(source: CustomDataset, entry: os.DirEntry) -> bool:
    """Whether a data set takes a file for an image, by its name alone."""
    return (
        not entry.name.startswith('.')
        and source.is_valid_file(entry.name)
        and entry.is_file()
    )


def walk(folder: str, depth: int = 0) -> Iterator[tuple[os.DirEntry, int]]:
    """All below a folder that is no folder itself, and how deep it lies.

    An entry of ``os.scandir`` knows its kind; no file is asked.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from walk(entry.path, depth + 1)
            else:
                yield entry, depth
