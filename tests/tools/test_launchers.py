"""dist_train.sh and slurm_train.sh train in two processes as one would."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from toy_resume import EPOCHS, LENGTH, Run, config, log, make_images, train

ROOT = Path(__file__).parents[2]

# srun, with all of its tasks on this machine.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
    [[ $1 == --ntasks=* ]] && SLURM_NTASKS=${1#*=}
    shift
done
export SLURM_NTASKS SLURM_NODELIST=localhost,away[2-4] SLURM_JOB_ID=7
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
done
code=0
for ((task = 0; task < SLURM_NTASKS; task++)); do
    wait -n || code=$?
done
exit $code
"""
LOGGER = ('default_hooks.logger', {'type': 'LoggerHook', 'interval': 1})


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp('images'))


@pytest.fixture(scope='module')
def expected(images, tmp_path_factory):
    """Logged losses of one process."""
    run = Run(tmp_path_factory.mktemp('alone'), changes=(LOGGER,))
    assert train(run, images) == [0], log(run)
    found = losses(run.folder)
    assert len(set(found)) == EPOCHS * LENGTH
    return found


@pytest.fixture
def halves(images, tmp_path):
    """A config with half the batch in each of two processes."""
    settings = config(Run(tmp_path, processes=2), images)
    for name in ('launcher', 'model_wrapper_cfg', 'custom_hooks'):
        del settings[name]
    settings['default_hooks']['logger'] = LOGGER[1]
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(settings))
    return path


def losses(folder):
    (path,) = folder.glob('*/vis_data/scalars.json')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row['loss'] for row in rows if 'loss' in row]


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def start(script, *arguments, **variables):
    own = {
        'OMP_NUM_THREADS': '1',
        'VIRTUAL_ENV': sys.prefix,
        'CUDA_VISIBLE_DEVICES': '',
        'GLOO_SOCKET_IFNAME': 'lo',
    }
    return subprocess.Popen(
        ['bash', ROOT / 'tools' / script, *map(str, arguments)],
        env={**os.environ, **own, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process):
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out


def checkpoints(folder):
    return [path.name for path in folder.rglob('*.pth')]


def test_two_machines(halves, expected, tmp_path):
    port = free_port()
    folders = [tmp_path / f'node-{rank}' for rank in (0, 1)]
    agents = [
        start(
            *('dist_train.sh', halves, 1, '--work-dir', folder),
            NNODES='2',
            NODE_RANK=str(rank),
            PORT=port,
        )
        for rank, folder in enumerate(folders)
    ]
    for agent in agents:
        finish(agent)
    assert losses(folders[0]) == pytest.approx(expected, rel=1e-4)
    assert checkpoints(folders[0]) == [f'epoch_{EPOCHS}.pth']
    assert checkpoints(folders[1]) == []


def test_slurm(halves, expected, tmp_path):
    srun = tmp_path / 'bin' / 'srun'
    srun.parent.mkdir()
    srun.write_text(SRUN)
    srun.chmod(0o755)
    job = start(
        *('slurm_train.sh', 'part', 'job', halves, tmp_path / 'run'),
        PATH=f'{srun.parent}:{os.environ["PATH"]}',
        MASTER_PORT=free_port(),
        GPUS='2',
    )
    finish(job)
    assert losses(tmp_path / 'run') == pytest.approx(expected, rel=1e-4)
    assert checkpoints(tmp_path / 'run') == [f'epoch_{EPOCHS}.pth']
