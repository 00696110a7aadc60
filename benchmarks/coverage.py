"""How often the interval of a change holds the true one, in simulated recordings: prints a Markdown table.

Run: python benchmarks/coverage.py [RECORDINGS]
Steps are AR(1) series: normal, with lag-1 autocorrelation rho; also with one step in 30 ten standard deviations longer.
"""

import sys

import numpy as np

from traceql.analyses.change import interval

RHOS = (-0.6, -0.3, 0.0, 0.3, 0.6, 0.8)
STEPS = (8, 14, 29, 59)
_BURN_IN = 60


def series(rng: np.random.Generator, n_steps: int, rho: float, *, with_outliers: bool) -> np.ndarray:
    """Step times of one recording, around 0."""
    noise = rng.standard_normal(n_steps + _BURN_IN)
    values = np.zeros_like(noise)
    for i in range(1, len(noise)):
        values[i] = rho * values[i - 1] + noise[i]
    values = values[_BURN_IN:] * np.sqrt(1 - rho**2)
    return values + 10.0 * (rng.random(n_steps) < 1 / 30) if with_outliers else values


def coverage(n_steps: int, rho: float, n_recordings: int, *, with_outliers: bool, seed: int = 1) -> float:
    """Share of pairs of equal recordings whose interval holds 0."""
    rng = np.random.default_rng(seed)
    held = 0
    for _ in range(n_recordings):
        before, after = (series(rng, n_steps, rho, with_outliers=with_outliers) for _ in range(2))
        found = interval(before, after)
        held += found.low <= 0 <= found.high
    return held / n_recordings


def main() -> None:
    """Prints the table."""
    n_recordings = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("# How often the interval of a change holds the true one\n")
    print(f"Printed by `python benchmarks/coverage.py {n_recordings}`. Two recordings of equal steps, AR(1) with lag-1")
    print("autocorrelation ρ, as many steps each; with outliers one step in 30 is ten standard deviations longer.")
    print(f"{n_recordings} pairs a cell; the interval is to hold 95 %.\n")
    print("| steps | outliers |" + "".join(f" ρ = {rho} |" for rho in RHOS))
    print("|---|---|" + "---|" * len(RHOS))
    for n_steps in STEPS:
        for with_outliers in (False, True):
            cells = (coverage(n_steps, rho, n_recordings, with_outliers=with_outliers) for rho in RHOS)
            print(f"| {n_steps} | {'yes' if with_outliers else 'no'} |" + "".join(f" {cell:.1%} |" for cell in cells))


if __name__ == "__main__":
    main()
