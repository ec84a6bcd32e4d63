import pytest
from mmengine.config import Config

from mim_plugins.engine import slurm
from mim_plugins.engine.errors import ConfigError
from mim_plugins.engine.launch import init_processes

TASK = {
    'SLURM_PROCID': '5',
    'SLURM_NTASKS': '8',
    'SLURM_LOCALID': '1',
    'SLURM_NODELIST': 'gpu[03-04]',
}


@pytest.fixture(autouse=True)
def without_scontrol(monkeypatch):
    monkeypatch.setattr(slurm.shutil, 'which', lambda name: None)


def test_variables_of_a_task():
    assert slurm.slurm_environment(TASK) == {
        'RANK': '5',
        'WORLD_SIZE': '8',
        'LOCAL_RANK': '1',
        'MASTER_ADDR': 'gpu03',
        'MASTER_PORT': '29500',
    }


def test_what_is_set_is_kept():
    mine = {'MASTER_ADDR': '10.0.0.1', 'MASTER_PORT': '1234'}
    found = slurm.slurm_environment({**TASK, **mine})
    assert {name: found[name] for name in mine} == mine


def test_the_hosts_of_the_step_come_before_those_of_the_job():
    found = slurm.slurm_environment({**TASK, 'SLURM_STEP_NODELIST': 'gpu04'})
    assert found['MASTER_ADDR'] == 'gpu04'


@pytest.mark.parametrize(
    'hosts, first',
    [
        ('localhost', 'localhost'),
        ('node1,node2', 'node1'),
        ('node[1-3,7],other', 'node1'),
        ('node[007,9]', 'node007'),
        ('rack[2-3]-node[04-05].site,login', 'rack2-node04.site'),
    ],
)
def test_first_host(hosts, first):
    assert slurm.first_host(hosts) == first


def test_scontrol_is_asked(monkeypatch, tmp_path):
    scontrol = tmp_path / 'scontrol'
    scontrol.write_text('#!/bin/sh\necho "$2-of-$3"\necho second\n')
    scontrol.chmod(0o755)
    monkeypatch.undo()
    monkeypatch.setenv('PATH', str(tmp_path), prepend=':')
    assert slurm.first_host('a[1-2]') == 'hostnames-of-a[1-2]'
    scontrol.write_text('#!/bin/sh\nexit 1\n')
    assert slurm.first_host('a[1-2]') == 'a1'


def test_a_command_that_srun_did_not_start(monkeypatch):
    monkeypatch.delenv('SLURM_PROCID', raising=False)
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    with pytest.raises(ConfigError, match='SLURM_PROCID is not set.*srun'):
        init_processes(Config({}), 'slurm')
