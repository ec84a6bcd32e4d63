"""A run that was killed and resumed is the run that was not."""

import functools
import os
import random
import signal
import time

import pytest
from toy_faults import POINTS, crash
from toy_resume import (
    EPOCHS,
    LENGTH,
    METHODS,
    Run,
    finish,
    log,
    losses,
    make_images,
    start,
    stop_after,
    train,
)

from mim_plugins.engine.checkpoint_files import check_whole, newest_whole

KINDS = {
    f'{processes} process(es), {workers} workers, '
    f'{"epochs" if by_epoch else "iterations"}': {
        'processes': processes,
        'workers': workers,
        'by_epoch': by_epoch,
    }
    for processes in (1, 2)
    for workers in (0, 2)
    for by_epoch in (True, False)
}
FAST = {'processes': 1, 'workers': 0, 'by_epoch': True}


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('images'))


@pytest.fixture(scope='module')
def whole(images, tmp_path_factory):
    """Losses and final state of an uninterrupted run, without workers."""

    @functools.cache
    def find(**kind):
        run = Run(tmp_path_factory.mktemp('whole'), **kind)
        assert set(train(run, images)) == {0}, log(run)
        assert len(losses(run)) == EPOCHS * LENGTH * run.processes
        return losses(run), run.final.read_text()

    return lambda run: find(
        method=run.method, processes=run.processes, by_epoch=run.by_epoch
    )


def newest(run):
    """What can be resumed from now."""
    return newest_whole(
        run.folder,
        run.folder / 'last_checkpoint',
        ('epoch_{}.pth', 'iter_{}.pth'),
        print,
    )


def assert_goes_on(run, images, whole):
    """Resume to the end; nothing differs from the uninterrupted run."""
    assert set(train(run.again(), images)) == {0}, log(run)
    expected, state = whole(run)
    assert losses(run) == expected
    assert run.final.read_text() == state
    kept = [path.name for path in run.folder.glob('*.pth')]
    last = f'epoch_{EPOCHS}' if run.by_epoch else f'iter_{EPOCHS * LENGTH}'
    assert kept == [f'{last}.pth']  # max_keep_ckpts=1
    assert not list(run.folder.glob('*.mim-part'))


def has_ended(child):
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child, options) is not None


def wait_for(run, count, children):
    """Until the last rank has done so many iterations, or one has ended."""
    path = run.folder / f'losses-{run.processes - 1}'
    while not path.exists() or len(path.read_text().splitlines()) < count:
        time.sleep(0.002)
        if any(map(has_ended, children)):
            return


def check_crash(point, run, images, whole):
    codes = train(run, images, crash(point))
    assert codes[0] == -signal.SIGKILL, log(run)
    assert not run.final.exists()
    check_whole(newest(run))  # the first one at least
    assert_goes_on(run, images, whole)


@pytest.mark.parametrize(
    'point',
    [
        'checkpoint: before writing',
        'checkpoint: half written',
        'checkpoint: renamed',
        'old one: before deletion',
    ],
)
def test_killed_while_writing(point, images, whole, tmp_path):
    check_crash(point, Run(tmp_path, **FAST), images, whole)


@pytest.mark.full
@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('point', POINTS)
def test_killed_while_writing_in_every_kind_of_run(
    point, kind, method, images, whole, tmp_path
):
    run = Run(tmp_path, method, **KINDS[kind])
    check_crash(point, run, images, whole)


def check_random_kill(seed, run, images, whole):
    """One to three kills, each at some moment of some iteration."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        children = start(run, images)
        done = len(losses(run)) // run.processes
        target = rng.randint(done, EPOCHS * LENGTH - 1)
        wait_for(run, target, children)
        time.sleep(rng.random() * 0.03)
        os.kill(children[rng.randrange(len(children))], signal.SIGKILL)
        finish(children)
        if run.final.exists():
            break
        run = run.again()
    assert_goes_on(run, images, whole)


@pytest.mark.parametrize('seed', [0, 1])
def test_killed_at_any_moment(seed, images, whole, tmp_path):
    run = Run(tmp_path, processes=1 + seed, workers=2, by_epoch=seed == 0)
    check_random_kill(seed, run, images, whole)


@pytest.mark.full
@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('seed', range(10))
@pytest.mark.parametrize('kind', KINDS)
def test_killed_at_any_moment_in_every_kind_of_run(
    kind, seed, method, images, whole, tmp_path
):
    run = Run(tmp_path, method, **KINDS[kind])
    check_random_kill(seed, run, images, whole)


def check_signal(number, after, run, images, whole):
    """Leave with 75 once the signal came, wherever the iteration was."""
    children = start(run, images)
    wait_for(run, after, children)
    os.killpg(children[-1], number)  # the workers get it as well
    assert set(finish(children)) == {75}, log(run)
    done = len(losses(run)) // run.processes
    assert after <= done < EPOCHS * LENGTH
    assert newest(run).name == f'iter_{done}.pth'
    assert_goes_on(run, images, whole)


@pytest.mark.parametrize(
    'number, after, kind',
    [
        (signal.SIGTERM, 2, {'workers': 2}),
        (signal.SIGTERM, 7, {'processes': 4}),
        (signal.SIGUSR1, 6, {'workers': 2, 'by_epoch': False}),
    ],
    ids=str,
)
def test_signals_save_in_the_middle_of_an_epoch(
    number, after, kind, images, whole, tmp_path
):
    check_signal(number, after, Run(tmp_path, **kind), images, whole)


@pytest.mark.full
@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('after', range(1, EPOCHS * LENGTH - 2))
@pytest.mark.parametrize('kind', KINDS)
def test_signals_after_any_iteration_of_every_kind_of_run(
    kind, after, method, images, whole, tmp_path
):
    number = (signal.SIGTERM, signal.SIGUSR1)[after % 2]
    run = Run(tmp_path, method, **KINDS[kind])
    check_signal(number, after, run, images, whole)


def test_nobody_leaves_before_the_checkpoint_is_whole(images, tmp_path):
    """A launcher kills the others as soon as one has left."""

    def slow(rank):
        stop_after(2)(rank)
        sync = os.fsync
        os.fsync = lambda descriptor: (time.sleep(0.2), sync(descriptor))

    run = Run(tmp_path, processes=2)
    children = start(run, images, slow)
    while not has_ended(children[1]):
        time.sleep(0.002)
    check_whole(newest(run))
    assert finish(children) == [75, 75], log(run)


def test_more_signals_while_saving_do_no_harm(images, whole, tmp_path):
    run = Run(tmp_path, **FAST)
    (child,) = start(run, images)
    wait_for(run, 3, [child])
    while not has_ended(child) and not list(tmp_path.glob('iter_*.pth')):
        os.kill(child, random.choice([signal.SIGTERM, signal.SIGUSR1]))
    assert finish([child]) == [75], log(run)
    assert_goes_on(run, images, whole)
