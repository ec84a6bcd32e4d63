"""Counts, lists and limits the image files that cannot be read."""

import contextlib
import fcntl
import math
import os

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmpretrain.registry import HOOKS

from mim_plugins.datasets.transforms import UnreadableImage

LIST_NAME = 'unreadable_images.txt'
# Below so many images, a share says little.
_ENOUGH = 1000


class TooManyUnreadable(UnreadableImage):
    """More files of the data set cannot be read than a run may replace."""


@HOOKS.register_module()
class UnreadableImagesHook(Hook):
    """Makes known which files :class:`ViewDataset` replaced by others.

    Each file is listed once, with the reason, in
    ``<work_dir>/unreadable_images.txt``, which all processes and later runs
    in the folder add to. The log has a warning for each file and a count for
    each epoch.

    Every process judges by the images that it has read itself, so nothing
    waits for the others when one stops; the launcher ends those. It stops as
    soon as its distinct unreadable files are more than ``max_share`` of the
    data set, or clearly more (three standard deviations) than that share of
    what was read so far, 1,000 images at least. A single file never stops a
    run unless ``max_share`` is 0. A resumed run counts anew.

    Args:
        max_share (float): in [0, 1]. 0 stops at the first unreadable file.

    Raises:
        ValueError: for another ``max_share``.
        TooManyUnreadable: while training; names share, list and setting.
    """

    # Before anything is done with the batch.
    priority = 'VERY_HIGH'

    def __init__(self, max_share: float = 0.01):
        if not 0 <= max_share <= 1:
            raise ValueError(
                'UnreadableImagesHook: max_share is a share of the images, '
                f'in [0, 1], got {max_share!r}.'
            )
        self.max_share = max_share
        self.found: dict[str, str] = {}
        self.read = 0
        self.replaced = 0

    def before_train(self, runner) -> None:
        """Look at the size of the data set and at an earlier list."""
        self.path = os.path.join(runner.work_dir, LIST_NAME)
        self.size = len(runner.train_dataloader.dataset)
        self.listed = set(read_list(self.path))

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        """Count the batch's unreadable files, and stop at too many."""
        for sample in data_batch.get('data_samples', ()):
            failed = sample.get('unreadable', ())
            self.read += 1 + len(failed)
            self.replaced += len(failed)
            for path, reason in failed:
                if path not in self.found:
                    self._add(runner, path, reason)
        if len(self.found) > self.limit:
            self._stop()

    def after_train_iter(
        self, runner, batch_idx, data_batch=None, outputs=None
    ) -> None:
        """Log the count at the end of every pass over the data."""
        if (batch_idx + 1) % len(runner.train_dataloader):
            return
        if is_main_process():
            # those of the other processes, whose loggers are silent
            for path, reason in read_list(self.path).items():
                if path not in self.listed:
                    self._warn(runner, path, reason)
        if self.replaced:
            runner.logger.warning(
                f'In this epoch {self.replaced:,} unreadable image(s) were '
                f'replaced by others in this process; {self.path} has '
                f'{len(self.listed):,}.'
            )
        self.replaced = 0

    @property
    def limit(self) -> float:
        """Unreadable files that are still accepted after ``self.read``."""
        if not self.max_share:
            return 0
        likely = self.max_share * max(self.read, _ENOUGH)
        likely += 3 * math.sqrt(likely)
        return max(1, min(likely, self.max_share * self.size))

    def _add(self, runner, path: str, reason: str) -> None:
        self.found[path] = reason
        add_to_list(self.path, path, reason)
        self._warn(runner, path, reason)

    def _warn(self, runner, path: str, reason: str) -> None:
        self.listed.add(one_line(path))
        runner.logger.warning(
            f'Unreadable image, replaced by another: {one_line(path)}: '
            f'{one_line(reason)}'
        )

    def _stop(self) -> None:
        seen = min(self.read, self.size)
        path, reason = next(iter(self.found.items()))
        raise TooManyUnreadable(
            f'{len(self.found):,} of {seen:,} images '
            f'({len(self.found) / seen:.2%}) could not be read (first: '
            f'{one_line(path)}: {one_line(reason)}), which is more than '
            f'default_hooks.unreadable.max_share={self.max_share} allows. '
            f'They are listed in {self.path}: repair them or take them out '
            'of the data set, or raise max_share.',
            path,
            reason,
        )


def one_line(text: str) -> str:
    """Text that fits a line of UTF-8, whatever a file is called."""
    text = text.encode('utf-8', 'backslashreplace').decode()
    return text.replace('\n', '\\n').replace('\t', '\\t')


def read_list(path: str) -> dict[str, str]:
    """Path -> reason of a list of unreadable images; empty without a list."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding='utf-8') as file:
        lines = [line.rstrip('\n').partition('\t') for line in file]
    return {name: reason for name, _, reason in lines}


def add_to_list(path: str, name: str, reason: str) -> None:
    """Add a file to a list unless it is there.

    Any number of processes may do so at once: the line is written in one
    piece, under a lock.
    """
    with open(path, 'ab', buffering=0) as file:
        # a file system without locks might list a file twice, no more
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        if one_line(name) not in read_list(path):
            file.write(f'{one_line(name)}\t{one_line(reason)}\n'.encode())
