"""The scripts that a user calls: arguments in, commands out."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    [
        *ROOT.glob('tools/*.sh'),
        *ROOT.glob('tools/setup/*.sh'),
        ROOT / '.ci/run',
    ]
)


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.name)
def test_script_parses(script):
    subprocess.run(['bash', '-n', script], check=True)


def test_shellcheck_has_nothing_to_say():
    if shutil.which('shellcheck') is None:
        pytest.skip('shellcheck is not installed')
    result = subprocess.run(
        ['shellcheck', '-x', *SCRIPTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout


class TestCommands:
    def test_demo(self, sandbox):
        before = int(time.time())
        result = sandbox.run('tools/demo.sh', '--seed', '1')
        assert result.returncode == 0, result.stderr
        last = sandbox.calls()[-1]
        assert last['python'] == f'{sandbox.root}/.venv/bin/python'
        assert last['arguments'] == ['tools/demo.py', '--seed', '1']
        assert before <= int(last['environment']['MIM_STARTED'])
        assert last['environment']['OMP_WAIT_POLICY'] == 'passive'

    def test_tests(self, sandbox):
        mine = sandbox.own_environment()
        (site,) = mine.glob('lib/python3*/site-packages')
        (site / 'mmcv').mkdir()
        (site / 'mmcv' / '_ext.so').touch()
        sandbox.behave(exit={'pytest': 5})
        result = sandbox.run(
            'tools/test.sh', '--full', 'tests/x y', VIRTUAL_ENV=mine
        )
        assert result.returncode == 5  # pytest's own
        last = sandbox.calls()[-1]
        assert last['arguments'][:2] == ['-m', 'pytest']
        assert last['arguments'][-2:] == ['--full', 'tests/x y']
        assert last['environment']['OMP_NUM_THREADS'] == '1'

    @pytest.mark.parametrize('failing', ['', 'ruff', 'pytest'])
    def test_ci(self, sandbox, failing):
        mine = sandbox.own_environment()
        (site,) = mine.glob('lib/python3*/site-packages')
        (site / 'mmcv').mkdir()
        (site / 'mmcv' / '_ext.so').touch()
        sandbox.behave(exit={failing: 1})
        result = sandbox.run('.ci/run', VIRTUAL_ENV=mine)
        assert result.returncode == (1 if failing else 0)
        started = sandbox.started()
        expected = '-m ruff' if failing == 'ruff' else '-m pytest'
        assert started[-1] == expected
        # The second time with upstream's libraries.
        runs = {'': 2, 'ruff': 0, 'pytest': 1}
        assert started.count('-m pytest') == runs[failing]

    @pytest.mark.parametrize('script', ['tools/demo.sh', 'tools/test.sh'])
    def test_help_installs_nothing(self, sandbox, script):
        result = sandbox.run(script, '--help')
        assert result.returncode == 0
        assert f'bash {script}' in result.stdout
        assert sandbox.calls() == []


class TestLaunchers:
    @pytest.fixture
    def active(self, sandbox):
        return {'VIRTUAL_ENV': sandbox.own_environment()}

    def test_dist_train(self, sandbox, active):
        result = sandbox.run(
            'tools/dist_train.sh', 'a b.py', '2', '--amp', **active
        )
        assert result.returncode == 0, result.stderr
        (call,) = sandbox.calls()
        assert call['arguments'] == [
            f'{sandbox.root}/tools/setup/torchrun.py',
            '--nnodes=1',
            '--node_rank=0',
            '--master_addr=127.0.0.1',
            '--master_port=29500',
            '--nproc_per_node=2',
            f'{sandbox.root}/tools/train.py',
            'a b.py',
            '--amp',
            '--launcher=pytorch',
        ]

    def test_dist_test_on_several_machines(self, sandbox, active):
        several = {
            'NNODES': 2,
            'NODE_RANK': 1,
            'MASTER_ADDR': '10.0.0.1',
            'PORT': 29511,
        }
        sandbox.run(
            'tools/dist_test.sh', 'c.py', 'e.pth', '8', **active, **several
        )
        (call,) = sandbox.calls()
        assert call['arguments'][1:] == [
            '--nnodes=2',
            '--node_rank=1',
            '--master_addr=10.0.0.1',
            '--master_port=29511',
            '--nproc_per_node=8',
            f'{sandbox.root}/tools/test.py',
            'c.py',
            'e.pth',
            '--launcher=pytorch',
        ]

    def test_python_of_the_set_up_is_found(self, sandbox):
        sandbox.run('pretrain')
        sandbox.calls()
        sandbox.run('tools/dist_train.sh', 'c.py', '1')
        (call,) = sandbox.calls()
        assert call['python'] == f'{sandbox.root}/.venv/bin/python'

    @pytest.mark.parametrize(
        'script, arguments',
        [
            ('tools/dist_train.sh', ['c.py']),
            ('tools/dist_test.sh', ['c.py', 'e.pth']),
            ('tools/slurm_train.sh', ['p', 'j', 'c.py']),
            ('tools/slurm_test.sh', ['p', 'j', 'c.py']),
        ],
    )
    def test_too_few_arguments(self, sandbox, script, arguments):
        result = sandbox.run(script, *arguments)
        assert result.returncode == 2
        assert f'bash {script}' in result.stderr

    @pytest.mark.parametrize('gpus', ['0', 'two', '-1', ''])
    def test_gpus_must_be_a_number(self, sandbox, gpus):
        result = sandbox.run('tools/dist_train.sh', 'c.py', gpus)
        assert result.returncode == 1
        assert f"not '{gpus}'" in result.stderr

    @pytest.mark.parametrize(
        'script, rest',
        [
            ('train', ['c.py', '--work-dir=w d', '--amp']),
            ('test', ['c.py', 'w d', '--amp']),
        ],
    )
    def test_slurm(self, sandbox, active, script, rest):
        sandbox.put('srun', 'printf "%s\\n" "$@"')
        result = sandbox.run(
            f'tools/slurm_{script}.sh',
            *['part', 'job', 'c.py', 'w d', '--amp'],
            **active,
            GPUS=4,
            CPUS_PER_TASK=6,
            SRUN_ARGS='--quotatype=auto --async',
        )
        assert result.stdout.splitlines() == [
            '--partition=part',
            '--job-name=job',
            '--gres=gpu:4',  # no more on a node than there are in all
            '--ntasks=4',
            '--ntasks-per-node=4',
            '--cpus-per-task=6',
            '--kill-on-bad-exit=1',
            '--quotatype=auto',
            '--async',
            f'{active["VIRTUAL_ENV"]}/bin/python',
            '-u',
            f'{sandbox.root}/tools/{script}.py',
            *rest,
            '--launcher=slurm',
        ]
