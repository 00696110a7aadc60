"""The interval of a change: against formulas, tables and simulated recordings."""

import math

import numpy as np
import pytest
from coverage import coverage, series
from hypothesis import given, settings
from hypothesis import strategies as st

from traceql.analyses.change import (
    MIN_STEPS,
    Interval,
    drift,
    interval,
    recording_interval,
    student_quantile,
    verdict,
)

STEPS = st.lists(st.integers(1, 10**9), min_size=2, max_size=40).map(lambda values: np.array(values, dtype=np.float64))


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.30265), (5, 2.57058), (10, 2.22814), (30, 2.04227), (1000, 1.96234)],
)
def test_quantiles_of_students_distribution(freedom, quantile):
    """Values of any printed table."""
    assert student_quantile(0.975, freedom) == pytest.approx(quantile, rel=1e-5)


def test_quantiles_between_whole_degrees_of_freedom_are_between():
    assert student_quantile(0.975, 3) < student_quantile(0.975, 2.5) < student_quantile(0.975, 2)


@settings(derandomize=True)
@given(before=STEPS, after=STEPS)
def test_swapped_sides_negate_the_interval(before, after):
    there, back = interval(before, after), interval(after, before)
    assert (back.difference, back.low, back.high) == pytest.approx((-there.difference, -there.high, -there.low))
    assert there.low <= there.difference <= there.high


@settings(derandomize=True)
@given(before=STEPS, after=STEPS, factor=st.sampled_from([0.5, 2.0, 1024.0]), shift=st.integers(0, 10**6))
def test_unit_and_origin_of_time_do_not_matter(before, after, factor, shift):
    found = interval(before, after)
    other = interval(before * factor + shift, after * factor + shift)
    expected = found.scaled(factor)
    assert (other.difference, other.low, other.high) == pytest.approx(
        (expected.difference, expected.low, expected.high), abs=1e-3, rel=1e-6
    )


def test_steps_without_noise_are_known_exactly():
    assert interval(np.full(9, 5.0), np.full(12, 7.0)) == Interval(2.0, 2.0, 2.0)


def test_one_long_step_moves_the_interval_little():
    rng = np.random.default_rng(4)
    calm = 100 + rng.standard_normal(29)
    jolted = calm.copy()
    jolted[7] = 100_000
    plain, found = interval(calm, calm), interval(calm, jolted)
    assert found.high - found.low < 1.5 * (plain.high - plain.low)
    assert abs(found.difference) < 0.5


def test_a_third_of_the_steps_off_is_no_certainty():
    """More than half of the steps are the same to the nanosecond; the interval must not be empty for that."""
    values = np.array([100.0] * 12 + [160.0] * 8)
    found = interval(values, values)
    assert found.low < -1
    assert found.high > 1


def test_neighbours_alike_make_it_wider():
    rng = np.random.default_rng(0)
    alike = series(rng, 29, 0.8, with_outliers=False)
    shuffled = rng.permutation(alike)
    wide, narrow = interval(alike, alike), interval(shuffled, shuffled)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


@pytest.mark.parametrize(
    ("n_steps", "rho", "least"), [(8, 0.0, 0.95), (29, -0.6, 0.95), (29, 0.8, 0.93), (8, 0.8, 0.88)]
)
def test_the_interval_holds_what_it_should(n_steps, rho, least):
    """A small part of benchmarks/coverage.md."""
    assert coverage(n_steps, rho, 150, with_outliers=False) >= least


def test_recordings_are_the_samples_where_there_are_several():
    before, after = np.array([100.0, 102.0, 98.0]), np.array([90.0, 92.0])
    found = recording_interval(before, after)
    error = math.sqrt(4 / 3 + 2 / 2)
    freedom = error**4 / ((4 / 3) ** 2 / 2 + 1.0**2 / 1)
    assert found.difference == -9
    assert found.high == pytest.approx(-9 + student_quantile(0.975, freedom) * error)


def test_a_single_recording_spreads_like_those_of_the_other_side():
    before, after = np.array([100.0, 102.0, 98.0]), np.array([90.0])
    found, back = recording_interval(before, after), recording_interval(after, before)
    reach = student_quantile(0.975, 2) * 2 * math.sqrt(1 / 3 + 1)
    assert (found.low, found.high) == pytest.approx((-10 - reach, -10 + reach))
    assert (back.low, back.high) == pytest.approx((10 - reach, 10 + reach))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.3, -0.02, "faster"),
        (0.02, 0.3, "slower"),
        (-0.01, 0.01, "same"),
        (0.0, 0.0, "same"),
        (-0.02, 0.0, "cannot tell"),
        (-0.3, -0.01, "cannot tell"),
        (0.01, 0.3, "cannot tell"),
        (-0.3, 0.3, "cannot tell"),
    ],
)
def test_verdicts_at_their_edges(low, high, expected):
    assert verdict(Interval((low + high) / 2, low, high), 0.01) == expected


def test_drift_needs_halves_that_tell():
    assert drift(np.arange(MIN_STEPS - 1.0)) is None
    assert drift(np.zeros(20)) is None
    found = drift(np.array([100.0, 101, 99, 100, 100, 101, 110, 111, 109, 110, 110, 111]))
    assert found is not None
    assert found.low > 0.05
