"""Whether step times changed: the difference of two medians, with an interval that knows that steps hang together.

Consecutive steps of a recording are not independent, and one of them may be far off, so the interval is made of order
statistics of each side, with fewer effective steps where neighbours are alike; benchmarks/coverage.py measures how
often it holds what it should. With several recordings a side, their medians are the samples, since one process differs
from the next by more than its own steps tell.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

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
_LEAST_FREEDOM = 7
"""Steps for a degree of freedom at the least: fewer make intervals wider than coverage needs (benchmarks/coverage.py)."""
_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)


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
    (a_error, a_freedom), (b_error, b_freedom) = _median_error(before), _median_error(after)
    return _interval(float(np.median(after) - np.median(before)), a_error, a_freedom, b_error, b_freedom)


def recording_interval(before: Floats, after: Floats) -> Interval:
    """The difference of the means of two sets of recordings, each given by its median (Welch's interval)."""
    (a_error, a_freedom), (b_error, b_freedom) = _mean_error(before), _mean_error(after)
    return _interval(float(after.mean() - before.mean()), a_error, a_freedom, b_error, b_freedom)


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
    """How much the second half of a recording differs from the first, as a share of it; None where halves are short."""
    half = len(values) // 2
    if half < MIN_STEPS // 2:
        return None
    first, second = values[:half], values[half:]
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

    From the distance of the two order statistics that hold the median in `LEVEL` of cases, if so many of the n steps
    as `n / inflation` are independent. A step farther off than outliers begin counts as one that is just so far off.
    """
    n = len(values)
    inflation = _inflation(values)
    reach = _Z / 2 * math.sqrt(n * inflation)
    low, high = max(math.floor(n / 2 - reach), 0), min(math.ceil(n / 2 + reach), n - 1)
    middle = np.median(values)
    limit = OUTLIER_MADS * np.median(np.abs(values - middle))
    ordered = np.sort(np.clip(values, middle - limit, middle + limit))
    return float(ordered[high] - ordered[low]) / (2 * _Z), max(n / inflation - 1, n / _LEAST_FREEDOM)


def _inflation(values: Floats) -> float:
    """By how much the variance of a median grows because neighbours are alike: (1 + r) / (1 − r).

    r is the lag-1 autocorrelation of the signs of deviations from the median, which an outlier cannot sway, freed of
    its bias in short series, plus one standard error; never below 0: what alternates is taken as independent.
    """
    n = len(values)
    signs = np.sign(values - np.median(values))
    centred = signs - signs.mean()
    total = float((centred**2).sum())
    r = float((centred[1:] * centred[:-1]).sum()) / total if total else 0.0
    r += (1 + 3 * r) / n + 1 / math.sqrt(n)
    r = min(max(r, 0.0), _MOST_ALIKE)
    return min((1 + r) / (1 - r), n / 2)


def _mean_error(values: Floats) -> tuple[float, float]:
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
