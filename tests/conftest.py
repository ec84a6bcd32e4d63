"""Options and limits of the whole suite."""

import gc
import os
import random

import pytest

# One thread each, before torch is imported: beside another busy process,
# threads that wait for one another make small models many times slower.
for _name in (
    'OMP_NUM_THREADS',
    'MKL_NUM_THREADS',
    'OPENBLAS_NUM_THREADS',
    'NUMEXPR_NUM_THREADS',
):
    os.environ[_name] = '1'
os.environ.setdefault('MPLBACKEND', 'Agg')
# What is garbage at a fork stays so in the child: the end of a process group
# there would wait for threads that only the parent has.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)


def pytest_addoption(parser):
    parser.addoption(
        '--full',
        action='store_true',
        help="also run the slow tests (marked 'full')",
    )


def pytest_configure(config):
    import torch
    from hypothesis import HealthCheck, settings

    torch.set_num_threads(1)
    # The same examples on every run: a failure can be repeated, and a busy
    # machine is no failure.
    settings.register_profile(
        'steady',
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile('steady')


def pytest_report_header(config):
    if config.getoption('--full'):
        return 'tier: full'
    return "tier: fast (--full adds the tests marked 'full')"


def pytest_collection_modifyitems(config, items):
    if config.getoption('--full'):
        return
    skip = pytest.mark.skip(reason='slow; runs with --full')
    for item in items:
        if 'full' in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same global random state."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def safe_reading(monkeypatch):
    """Checkpoints are read as the tools read them.

    With torch 2.6 and later, upstream's mmengine cannot read its own.
    """
    from mmengine.runner import CheckpointLoader

    from mim_plugins import compat

    schemes = dict(CheckpointLoader._schemes)
    monkeypatch.setattr(CheckpointLoader, '_schemes', schemes)
    compat.read_checkpoints_safely()
