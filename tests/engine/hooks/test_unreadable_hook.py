"""The hook that counts, lists and limits unreadable images."""

import logging
import multiprocessing
import time
from types import SimpleNamespace

import pytest
from mmpretrain.registry import HOOKS
from mmpretrain.structures import DataSample

from mim_plugins.engine.hooks import (
    TooManyUnreadable,
    UnreadableImagesHook,
    unreadable_hook,
)
from mim_plugins.engine.hooks.unreadable_hook import (
    LIST_NAME,
    add_to_list,
    read_list,
)


class Log(logging.Logger):
    def __init__(self):
        super().__init__('test')
        self.lines = []

    def handle(self, record):
        assert record.levelno == logging.WARNING
        self.lines.append(record.getMessage())


def runner_of(folder, images=1000, batches=4):
    """As much of a Runner as the hook reads."""

    class Loader:
        dataset = range(images)

        def __len__(self):
            return batches

    return SimpleNamespace(
        work_dir=str(folder), logger=Log(), train_dataloader=Loader()
    )


def batch_of(*samples):
    """Each sample is a list of the names that could not be read."""
    return {
        'data_samples': [
            DataSample(
                metainfo={
                    'unreadable': [(name, f'{name} is bad') for name in names]
                }
                if names
                else {}
            )
            for names in samples
        ]
    }


GOOD = ()


def hook_on(runner, **options):
    hook = UnreadableImagesHook(**options)
    hook.before_train(runner)
    return hook


def step(hook, runner, *samples, index=0):
    batch = batch_of(*samples)
    hook.before_train_iter(runner, index, batch)
    hook.after_train_iter(runner, index, batch)


def test_each_file_is_warned_of_and_listed_once(tmp_path):
    runner = runner_of(tmp_path)
    hook = hook_on(runner)
    step(hook, runner, GOOD, ['a.png'], ['b.png', 'a.png'])
    step(hook, runner, ['a.png'], GOOD, index=1)
    assert len(runner.logger.lines) == 2
    assert 'a.png: a.png is bad' in runner.logger.lines[0]
    listed = (tmp_path / LIST_NAME).read_text()
    assert listed == 'a.png\ta.png is bad\nb.png\tb.png is bad\n'


def test_the_count_is_logged_at_the_end_of_each_pass(tmp_path):
    runner = runner_of(tmp_path, batches=2)
    hook = hook_on(runner)
    counts = []
    for index, names in enumerate((['a'], ['b', 'a'], GOOD, GOOD, ['c'], [])):
        step(hook, runner, names, index=index)
        counts += [
            line.partition(' unreadable')[0].rpartition(' ')[2]
            for line in runner.logger.lines
            if 'In this epoch' in line
        ]
        runner.logger.lines.clear()
    assert counts == ['3', '1']


def test_what_other_processes_list_is_warned_of_too(tmp_path):
    runner = runner_of(tmp_path, batches=1)
    add_to_list(str(tmp_path / LIST_NAME), 'old', 'of an earlier run')
    hook = hook_on(runner)
    add_to_list(str(tmp_path / LIST_NAME), 'theirs', 'cut')
    step(hook, runner, ['mine'])
    lines = runner.logger.lines
    assert ['mine' in lines[0], 'theirs: cut' in lines[1]] == [True, True]
    assert len(lines) == 3 and 'has 3.' in lines[2]
    step(hook, runner, GOOD)
    assert len(lines) == 3


def stops_after(hook, runner, samples):
    """Number of samples until the hook stops, or None."""
    for number, names in enumerate(samples, 1):
        try:
            step(hook, runner, names)
        except TooManyUnreadable as error:
            return number, str(error)
    return None


def every(period, number):
    return [[f'{i}.png'] if i % period == 0 else GOOD for i in range(number)]


@pytest.mark.parametrize(
    ('share', 'images', 'samples', 'stop'),
    [
        (0, 1000, every(10, 100), 1),
        (0, 1000, [GOOD, GOOD, ['a']], 3),
        # a single file never stops a run ...
        (0.01, 30, [['a'], *[GOOD] * 29], None),
        (0.01, 30, [['a']] * 30, None),
        # ... two are certainly more than 1 % of 30 or 199, not of 200
        (0.01, 30, [['a'], ['b']], 2),
        (0.01, 199, [['a'], ['b']], 2),
        (0.01, 200, [['a'], ['b']], None),
        # a large data set: 10 + 3 * sqrt(10) of the first 1000
        (0.01, 100_000, every(50, 930), None),
        (0.01, 100_000, every(50, 1000), 951),
        # the share itself, and the chance that it comes early
        (0.01, 100_000, every(100, 3000), None),
        (0.02, 100_000, every(50, 3000), None),
        (1, 100, [[str(i)] for i in range(100)], None),
    ],
)
def test_a_share_above_the_setting_stops(
    share, images, samples, stop, tmp_path
):
    runner = runner_of(tmp_path, images, batches=10**9)
    found = stops_after(hook_on(runner, max_share=share), runner, samples)
    assert (found and found[0]) == stop


def test_the_error_names_share_list_and_setting(tmp_path):
    runner = runner_of(tmp_path, images=50)
    _, text = stops_after(hook_on(runner), runner, [GOOD, ['a'], ['b']])
    assert text.startswith('2 of 5 images (40.00%)')
    assert 'first: a: a is bad' in text
    assert 'default_hooks.unreadable.max_share=0.01' in text
    assert str(tmp_path / LIST_NAME) in text and '\n' not in text


def test_names_of_any_kind_make_one_line(tmp_path):
    name = 'a\nb\tc\udcff.png'  # as Python decodes a name that is no UTF-8
    path = str(tmp_path / LIST_NAME)
    for _ in range(2):
        add_to_list(path, name, 'two\nlines')
    assert read_list(path) == {'a\\nb\\tc\\udcff.png': 'two\\nlines'}
    runner = runner_of(tmp_path)
    step(hook_on(runner), runner, [name])
    assert '\n' not in runner.logger.lines[0]


def add_many(path, first, together):
    together.wait()
    for number in range(first, first + 60):
        add_to_list(path, f'{number}.png', 'x' * 300)


def test_processes_that_write_at_once_neither_tear_nor_repeat(
    tmp_path, monkeypatch
):
    def slow(path):
        found = read_list(path)
        time.sleep(0.001)  # in which another process might write
        return found

    monkeypatch.setattr(unreadable_hook, 'read_list', slow)
    path = str(tmp_path / LIST_NAME)
    context = multiprocessing.get_context('fork')
    together = context.Barrier(3)
    writers = [
        context.Process(target=add_many, args=(path, first, together))
        for first in (0, 0, 30)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    lines = (tmp_path / LIST_NAME).read_text().splitlines()
    assert sorted(lines) == sorted(
        f'{number}.png\t{"x" * 300}' for number in range(90)
    )


def test_it_is_registered_and_checks_its_setting():
    hook = HOOKS.build({'type': 'UnreadableImagesHook', 'max_share': 0.5})
    assert hook.max_share == 0.5
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r'max_share.*\[0, 1\]'):
            UnreadableImagesHook(share)
