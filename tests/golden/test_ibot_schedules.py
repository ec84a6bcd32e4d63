"""Schedules against the official tables (``ibot_schedules.npz``)."""

import numpy as np
import pytest
from golden_files import golden

from mim_plugins.engine import (
    CosineSchedule,
    Progress,
    TemperatureSchedule,
    cosine_schedule,
    temperature_schedule,
)

TOLERANCE = {'rtol': 0, 'atol': 1e-12}
Z = golden('ibot_schedules')
COSINES = Z.cases('values')
TEMPERATURES = Z.cases('cls')


def test_the_file_has_both_kinds():
    assert COSINES and TEMPERATURES


def run_of(hp):
    per_epoch = hp.get('iters_per_epoch', 3)
    return Progress(hp['epochs'] * per_epoch, per_epoch)


@pytest.mark.parametrize('case', COSINES)
def test_cosine_function(case):
    hp = Z.hp(case)
    values = cosine_schedule(
        hp['base'],
        hp['final'],
        hp['epochs'] * hp['iters_per_epoch'],
        hp['warmup_epochs'] * hp['iters_per_epoch'],
        hp['start'],
    )
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, Z[f'{case}/values'], **TOLERANCE)


@pytest.mark.parametrize('case', COSINES)
def test_cosine_schedule(case):
    hp = Z.hp(case)
    schedule = CosineSchedule(
        hp['base'],
        hp['final'],
        warmup_epochs=hp['warmup_epochs'],
        start=hp['start'],
    )
    values = schedule.values(run_of(hp))
    np.testing.assert_allclose(values, Z[f'{case}/values'], **TOLERANCE)


@pytest.mark.parametrize('case', TEMPERATURES)
@pytest.mark.parametrize('part', ['cls', 'patch'])
def test_temperatures(case, part):
    hp = Z.hp(case)
    delay = hp['mim_start'] if part == 'patch' else 0
    warm, final = hp[f'warm_{part}'], hp[f'final_{part}']
    warmup = hp['warmup_epochs']
    expected = Z[f'{case}/{part}']
    values = temperature_schedule(warm, final, warmup, hp['epochs'], delay)
    np.testing.assert_allclose(values, expected, **TOLERANCE)
    schedule = TemperatureSchedule(warm, final, warmup, delay)
    values = schedule.values(run_of(hp))
    np.testing.assert_allclose(values, expected, **TOLERANCE)
