import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mim_plugins.engine import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Progress,
    StepSchedule,
    TemperatureSchedule,
    cosine_schedule,
    describe_run,
    effective_lr,
    linear_schedule,
    step_schedule,
    temperature_schedule,
)
from mim_plugins.engine.schedules import build_schedule, register_schedule

lengths = st.integers(1, 60)
warmups = st.integers(0, 80)


@settings(deadline=None)
@given(total=lengths, warmup=warmups)
@pytest.mark.parametrize('function', [cosine_schedule, linear_schedule])
def test_any_length_and_warmup(function, total, warmup):
    """Runs shorter than their warm-up get the start of the ramp."""
    values = function(1.0, 0.25, total, warmup, start=0.5)
    assert values.shape == (total,)
    ramp = np.linspace(0.5, 1.0, warmup)[:total]
    np.testing.assert_array_equal(values[: len(ramp)], ramp)
    rest = values[len(ramp) :]
    assert (np.diff(rest) < 0).all() and (rest > 0.25).all()
    if len(rest):
        assert rest[0] == 1.0


def test_cosine_is_halfway_in_the_middle():
    values = cosine_schedule(1.0, 0.0, 14, warmup=4)
    assert values[4 + 5] == pytest.approx(0.5)


def test_linear_falls_by_equal_steps():
    values = linear_schedule(1.0, 0.0, 4)
    np.testing.assert_allclose(values, [1, 0.75, 0.5, 0.25])


def test_steps_count_from_the_start_of_the_run():
    values = step_schedule(1.0, 0.1, [5, 3], 7, warmup=2)
    np.testing.assert_allclose(values, [0, 1, 1, 0.1, 0.1, 0.01, 0.01])


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(0, 40), st.integers(0, 40))
def test_temperature_of_any_length(epochs, warmup, delay):
    values = temperature_schedule(0.04, 0.07, warmup, epochs, delay)
    assert values.shape == (epochs,)
    assert (values[:delay] == 0.04).all()
    assert (values[delay + warmup :] == 0.07).all()
    assert (np.diff(values) >= 0).all()


RUN = Progress(total_iters=20, iters_per_epoch=5, accumulation=1)


def test_warmup_in_epochs_or_iterations():
    by_epoch = CosineSchedule(1.0, 0.0, warmup_epochs=2).values(RUN)
    by_iter = CosineSchedule(1.0, 0.0, warmup_iters=10).values(RUN)
    np.testing.assert_array_equal(by_epoch, by_iter)
    np.testing.assert_array_equal(by_iter, cosine_schedule(1.0, 0.0, 20, 10))


def test_fractions_of_an_epoch():
    values = CosineSchedule(1.0, 0.0, warmup_epochs=0.4).values(RUN)
    np.testing.assert_array_equal(values, cosine_schedule(1.0, 0.0, 20, 2))


@pytest.mark.parametrize(
    'schedule',
    [
        CosineSchedule(0.5, 0.1, scale_batch=256),
        LinearSchedule(0.5, 0.1, scale_batch=256),
        ConstantSchedule(0.5, scale_batch=256),
        StepSchedule(0.5, [2], scale_batch=256),
    ],
)
def test_only_the_base_is_scaled_with_the_batch(schedule):
    values = schedule.values(RUN, global_batch=1024)
    assert values[0] == 2.0
    if hasattr(schedule, 'final'):
        other = type(schedule)(2.0, 0.1).values(RUN)
        np.testing.assert_array_equal(values, other)


def test_scaling_needs_a_batch():
    with pytest.raises(ValueError, match='scale_batch=256'):
        CosineSchedule(0.5, 0.1, scale_batch=256).values(RUN)


def test_milestones_are_epochs():
    run = Progress(total_iters=20, iters_per_epoch=5, accumulation=5)
    values = StepSchedule(1.0, [2, 3], gamma=0.5).values(run)
    np.testing.assert_array_equal(values, [1, 1, 0.5, 0.25])


def test_build_by_name():
    schedule = build_schedule(
        {'type': 'TemperatureSchedule', 'warm': 0.1, 'final': 0.2}
    )
    assert isinstance(schedule, TemperatureSchedule)
    assert schedule.values(RUN).tolist() == [0.2] * 4


@pytest.mark.parametrize(
    'config, error, words',
    [
        ({'type': 'Cosine'}, KeyError, 'CosineSchedule'),
        ({'base': 1}, KeyError, 'unknown schedule type None'),
        (
            {'type': 'CosineSchedule', 'base': 1, 'end': 0},
            TypeError,
            'CosineSchedule: .*final',
        ),
        (
            {'type': 'ConstantSchedule', 'base': 1, 'warmup_epochs': -1},
            ValueError,
            'negative',
        ),
        (
            {
                'type': 'ConstantSchedule',
                'base': 1,
                'warmup_epochs': 1,
                'warmup_iters': 1,
            },
            ValueError,
            'not both',
        ),
    ],
)
def test_mistakes_in_a_config(config, error, words):
    with pytest.raises(error, match=words):
        build_schedule(config)


def test_a_name_is_registered_once():
    with pytest.raises(KeyError, match='exists already'):
        register_schedule(CosineSchedule)


@settings(deadline=None)
@given(total=lengths, length=st.integers(1, 20), count=st.integers(1, 9))
def test_progress_is_constant_within_a_window(total, length, count):
    progress = Progress(total, length, count)
    steps = [progress.step(i) for i in range(total)]
    assert steps[-1] == progress.steps - 1
    assert sorted(set(steps)) == list(range(progress.steps))
    epochs = [progress.epoch(i) for i in range(total)]
    assert epochs == [s * count // length for s in steps]
    assert epochs[-1] < progress.epochs


def test_iterations_beyond_the_end_keep_the_last_values():
    """mmengine repeats the epoch of a checkpoint made in its middle."""
    assert RUN.step(23) == 19
    assert RUN.epoch(23) == 3


def test_epochs_need_a_length():
    unknown = Progress(20, None)
    assert CosineSchedule(1.0, 0.0).values(unknown).shape == (20,)
    with pytest.raises(ValueError, match='iters_per_epoch'):
        CosineSchedule(1.0, 0.0, warmup_epochs=1).values(unknown)


def test_effective_lr():
    assert effective_lr(5e-4, 256, 64, 16) == pytest.approx(2e-3)
    assert effective_lr(5e-4, 256, 32, 2, 4) == pytest.approx(5e-4)
    assert effective_lr(5e-4, None, 32, 2, 4) == 5e-4


def test_describe_run_without_scaling():
    text = describe_run(RUN, 8, lr=0.1, processes=4)
    assert text == (
        'base lr 0.1, effective lr 0.1 (base, not scaled); global batch 32 = '
        '8 images x 4 processes x accumulation 1; 20 optimizer steps in 4 '
        'epochs of 5 iterations'
    )
