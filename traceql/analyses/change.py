"""Whether step times changed: the difference of two medians, with an interval that knows that steps hang together.

Consecutive steps of a recording are not independent, and one of them may be far off, so the interval takes outliers in
and has fewer effective steps where neighbours are alike; benchmarks/coverage.py measures how often it holds what it
should. With several recordings a side, their medians are the samples, since one process differs from the next by more
than its own steps tell.
"""

import math
from dataclasses import dataclass

import numpy as np

from traceql.arrays import Floats

LEVEL = 0.95
"""How often the interval is to hold the true difference."""
MIN_STEPS = 8
"""Complete steps of a side below which nothing is claimed."""
VERDICTS = ("faster", "slower", "same", "cannot tell")
OUTLIER_MADS = 3 * 1.4826
"""Median absolute deviations from the median at which outliers begin: three standard deviations of a normal one."""
_MOST_ALIKE = 0.95
_LEAST_FREEDOM = 6
"""Steps for a degree of freedom at the least: else intervals are wider than they need be (benchmarks/coverage.py)."""
_FAR_MADS = 2 * 1.4826
"""Median absolute deviations that are two standard deviations of normal values, and"""
_CLIPPED_DEVIATION = 0.959
"""the standard deviation that is left of 1 when normal values are clipped there."""
_MARGIN = 0.35
"""Standard errors of the autocorrelation by which it is taken to be higher than it looks (benchmarks/coverage.py)."""
_MEDIAN_FACTOR = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, of normal values."""


@dataclass(frozen=True)
class Interval:
    """A difference and where it lies with `LEVEL` confidence; in the unit of the samples."""

    difference: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """The same in another unit."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(self.difference * factor, ends[0], ends[1])


def interval(before: Floats, after: Floats) -> Interval:
    """The difference of the medians, after − before, of steps in order of time.

    Needs two values a side; the more of a side's neighbours are alike, the wider it is.
    """
    return _interval(float(np.median(after) - np.median(before)), *_median_error(before), *_median_error(after))


def recording_interval(before: Floats, after: Floats) -> Interval:
    """The difference of the means of two sets of recordings, each given by its median (Welch's interval).

    Needs two recordings on one side; a single one is taken to spread like those of the other side.
    """
    difference = float(after.mean() - before.mean())
    if min(len(before), len(after)) > 1:
        return _interval(difference, *_mean_error(before), *_mean_error(after))
    several = before if len(before) > 1 else after
    error, freedom = _mean_error(several)
    return _interval(difference, math.hypot(error, float(several.std(ddof=1))), freedom, 0.0, freedom)


def verdict(relative: Interval, min_effect: float) -> str:
    """One of `VERDICTS`, of a change relative to before.

    Args:
        relative: the change as a share of before.
        min_effect: the smallest share that matters.
    """
    if relative.high < -min_effect:
        return "faster"
    if relative.low > min_effect:
        return "slower"
    return "same" if -min_effect <= relative.low and relative.high <= min_effect else "cannot tell"


def drift(values: Floats) -> Interval | None:
    """How much the second half of a recording differs from the first, as a share of it.

    None where halves are short, or have no length.
    """
    half = len(values) // 2
    first, second = values[:half], values[half:]
    if half < MIN_STEPS // 2 or not np.median(first):
        return None
    return interval(first, second).scaled(1 / float(np.median(first)))


def _interval(difference: float, a_error: float, a_freedom: float, b_error: float, b_freedom: float) -> Interval:
    error = math.hypot(a_error, b_error)
    if not error:
        return Interval(difference, difference, difference)
    freedom = error**4 / (a_error**4 / a_freedom + b_error**4 / b_freedom)  # Welch and Satterthwaite
    reach = student_quantile(0.5 + LEVEL / 2, freedom) * error
    return Interval(difference, difference - reach, difference + reach)


def _median_error(values: Floats) -> tuple[float, float]:
    """Standard error of the median, and its degrees of freedom.

    A step farther off than two standard deviations counts as one that is just so far off. Of n steps as many as
    n / inflation count as independent.
    """
    n, kept = len(values), _clipped(values)
    inflation = _inflation(kept)
    error = _MEDIAN_FACTOR * float(kept.std(ddof=1)) / _CLIPPED_DEVIATION * math.sqrt(inflation / n)
    return error, max(n / inflation - 1, n / _LEAST_FREEDOM)


def _clipped(values: Floats) -> Floats:
    """Far values moved nearer to the median; all as they are where most are the same."""
    middle = np.median(values)
    limit = _FAR_MADS * np.median(np.abs(values - middle))
    return np.clip(values, middle - limit, middle + limit) if limit else values


def _inflation(values: Floats) -> float:
    """By how much the variance grows because neighbours are alike: (1 + r) / (1 − r).

    r is the lag-1 autocorrelation, freed of its bias in short series and with a margin for its own error; never below
    0: what alternates is taken as independent.
    """
    n = len(values)
    deviations = values - values.mean()
    total = float((deviations**2).sum())
    r = float((deviations[1:] * deviations[:-1]).sum()) / total if total else 0.0
    r += (1 + 3 * r) / n + _MARGIN / math.sqrt(n)
    r = min(max(r, 0.0), _MOST_ALIKE)
    return min((1 + r) / (1 - r), n / 2)


def _mean_error(values: Floats) -> tuple[float, float]:
    """Standard error of the mean of independent values, and its degrees of freedom."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)), float(len(values) - 1)


def student_quantile(p: float, freedom: float) -> float:
    """Quantile of Student's t distribution with real degrees of freedom of at least 1.

    By bisection over its distribution function, which is a regularised incomplete beta function (Lentz's continued
    fraction); exact to 1e-9.
    """
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: float) -> float:
    x = freedom / (freedom + t * t)
    return 1 - 0.5 * _beta_fraction(x, freedom / 2, 0.5)


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function I_x(a, b)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_fraction(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or tiny)
    value = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + numerator * d) or tiny)
            c = (1 + numerator / c) or tiny
            value *= d * c
        if abs(d * c - 1) < 1e-12:
            break
    return front * value / a
