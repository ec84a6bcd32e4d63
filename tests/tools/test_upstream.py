"""tools/setup/upstream.sh: the second environment, with upstream's libraries.

It lies in the first one, whose packages it shares.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM = ('mmengine', 'mmcv_lite', 'mmpretrain')


@pytest.fixture
def mine(sandbox):
    """The user's environment, with which the tests can be run."""
    mine = sandbox.own_environment('thing==1.0')
    (site,) = mine.glob('lib/python3*/site-packages')
    (site / 'mmcv').mkdir()
    (site / 'mmcv' / '_ext.so').touch()
    (site / 'thing').mkdir()
    return mine


@pytest.fixture
def run(sandbox, mine):
    """Run the tests with upstream's libraries; what was started."""

    def run(*arguments, returncode=0):
        result = sandbox.run(
            'tools/test.sh', '--upstream', *arguments, VIRTUAL_ENV=mine
        )
        assert result.returncode == returncode, result.stderr
        return sandbox.calls()

    return run


@pytest.fixture
def folder(mine):
    return mine / '.mim_plugins' / 'upstream'


def site_of(environment):
    (site,) = environment.glob('lib/python3*/site-packages')
    return site


def names(site):
    return {path.name for path in site.iterdir()}


def test_upstream_takes_the_place_of_the_forks(run, mine, folder):
    (site_of(mine) / 'owned_by_the_fork').mkdir()
    record = 'owned_by_the_fork/__init__.py,,\nmmdet/__init__.py,,\n'
    run()
    (fork,) = site_of(mine).glob('onedl_mmdetection-*')
    (fork / 'RECORD').write_text(f'{record}{fork.name}/METADATA,,\n')
    (folder / 'key').unlink()
    run()
    here = names(site_of(folder))
    installed = {name.split('-')[0] for name in here if 'dist-info' in name}
    assert {*UPSTREAM, 'thing', 'torch', 'mim_plugins'} <= installed
    assert not {name for name in installed if name.startswith('onedl')}
    assert not {'owned_by_the_fork', 'mmcv'} & here
    assert (site_of(folder) / 'thing').samefile(site_of(mine) / 'thing')


def test_pip_does_not_write_through_a_link(run, sandbox, mine, folder):
    name = 'mmengine-0.10.7.dist-info'
    theirs = sandbox.install(mine, 'other==1.0')
    theirs = theirs.rename(theirs.with_name(name)) / 'METADATA'
    before = theirs.read_text()
    calls = run()
    (pip,) = [c for c in calls if '--target' in c['arguments']]
    assert '--no-deps' in pip['arguments']
    assert pip['wanted'] == [
        'mmengine==0.10.7',
        'mmcv-lite==2.1.0',
        'mmpretrain==1.2.0',
    ]
    assert theirs.read_text() == before
    assert 'mmengine' in (site_of(folder) / name / 'METADATA').read_text()


def test_second_run_makes_nothing(run, folder):
    run()
    (folder / 'mark').touch()
    (pytest_call,) = run()
    assert pytest_call['arguments'][:2] == ['-m', 'pytest']
    assert (folder / 'mark').exists()


@pytest.mark.parametrize('change', ['pins', 'packages', 'folder'])
def test_is_made_afresh_when_something_changed(
    run, sandbox, mine, folder, change
):
    run()
    (folder / 'mark').touch()
    if change == 'pins':
        with open(sandbox.root / 'requirements' / 'upstream.txt', 'a') as file:
            file.write('# changed\n')
    elif change == 'packages':
        sandbox.install(mine, 'other==2.0')
    else:
        (folder / 'key').unlink()
    run()
    assert not (folder / 'mark').exists()


def test_is_made_afresh_when_it_broke_off(run, sandbox, folder):
    run('-x')
    (folder / 'key').unlink()
    sandbox.behave(pip='full disk')
    run(returncode=1)
    assert not (folder / 'key').exists()
    sandbox.behave()
    run()
    assert (folder / 'key').exists()


def test_failed_import_is_not_trusted(run, sandbox, mine, folder):
    sandbox.run('test', VIRTUAL_ENV=mine)
    sandbox.behave(**{'import': 'ImportError: no pkg_resources'})
    run(returncode=1)
    assert not (folder / 'key').exists()


def test_its_python_runs_the_tests_and_what_they_start(run, folder):
    last = run('tests/x y', '-k', 'name')[-1]
    assert last['python'] == f'{folder}/bin/python'
    assert last['arguments'][-3:] == ['tests/x y', '-k', 'name']
    assert last['environment']['VIRTUAL_ENV'] == str(folder)


def test_without_arguments_it_runs_files_that_are_there(run):
    arguments = run()[-1]['arguments']
    named = [a for a in arguments if re.match(r'(--ignore=)?tests/', a)]
    assert len(named) > 5
    for name in named:
        path, _, test = name.removeprefix('--ignore=').partition('::')
        assert (ROOT / path).exists()
        if test:
            assert f'def {test}(' in (ROOT / path).read_text()
