"""Signals and exit codes on their way through tools/setup/torchrun.py."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / 'tools' / 'setup' / 'torchrun.py'

# Rank 1 is slow to leave, as one that writes a checkpoint.
WORKER = """
import os, signal, sys, time
from pathlib import Path

rank = os.environ['RANK']
folder = Path(sys.argv[1])

def leave(number, frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, after rank 0
    time.sleep(0.5 * int(rank))
    (folder / f'left-{rank}').write_text(str(number))
    sys.exit(int(sys.argv[2]))

signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGUSR1, leave)
(folder / f'ready-{rank}').touch()
time.sleep(60)
"""


def start(folder, *arguments, port=29641):
    path = folder / 'worker.py'
    path.write_text(WORKER)
    return subprocess.Popen(
        [
            *(sys.executable, LAUNCHER, '--nproc_per_node=2'),
            f'--master_port={port}',
            *(path, folder, *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
    )


def wait_for(paths, process):
    while not all(path.exists() for path in paths):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)


def both(folder, name):
    return [folder / f'{name}-{rank}' for rank in (0, 1)]


@pytest.mark.parametrize(
    'number, whole_group', [(signal.SIGTERM, True), (signal.SIGUSR1, False)]
)
def test_workers_leave_by_themselves_and_their_code_arrives(
    number, whole_group, tmp_path
):
    process = start(tmp_path, '75')
    wait_for(both(tmp_path, 'ready'), process)
    (os.killpg if whole_group else os.kill)(process.pid, number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 75, out
    assert [p.read_text() for p in both(tmp_path, 'left')] == (
        [str(int(number))] * 2
    )


@pytest.mark.full
def test_another_code_is_a_failure(tmp_path):
    process = start(tmp_path, '3')
    wait_for(both(tmp_path, 'ready'), process)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert 'exitcode  : 3' in out


@pytest.mark.full
def test_a_terminals_interrupt_ends_all(tmp_path):
    process = start(tmp_path, '75')
    wait_for(both(tmp_path, 'ready'), process)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode not in (0, 75)
    assert not any(path.exists() for path in both(tmp_path, 'left'))
