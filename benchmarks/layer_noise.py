"""How well layers are found by sequence in made steps, over noise: prints a Markdown table.

Run: python benchmarks/layer_noise.py [MODELS]
"""

import random
import sys

import polars as pl
from layer_model import Noise, activities_of, model_of, step_of, with_noise

from traceql.analyses.layer_sequence import by_sequence
from traceql.analyses.main_line import with_main_line

LEVELS = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1)


def scores(noise: Noise, n_models: int, seed: int = 7) -> tuple[float, float, float]:
    """Of the kernels of true layers: the shares put in their layer, in a wrong one, and in none."""
    right = wrong = none = 0
    for number in range(n_models):
        rng = random.Random(f"{seed}-{number}")
        made = step_of(model_of(rng), rng)
        activities = activities_of([with_noise(made, noise, rng)])
        placed, _ = by_sequence(with_main_line(activities))
        found = activities.join(placed, on="kernel_id", how="left", validate="1:1").filter(
            pl.col("true_layer").is_not_null()
        )
        is_right = (found["layer"] == found["true_layer"]).fill_null(False)
        right += int(is_right.sum())
        none += found["layer"].null_count()
        wrong += found.height - int(is_right.sum()) - found["layer"].null_count()
    total = right + wrong + none
    return right / total, wrong / total, none / total


def main() -> None:
    """Prints the table."""
    n_models = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{n_models} random models a row, one step each\n")
    print("| noise | kernels | right layer | wrong layer | no layer |\n|---|---|---|---|---|")
    for kind in ("drop", "insert", "rename"):
        for level in LEVELS:
            right, wrong, none = scores(Noise(**{kind: level}), n_models)
            print(f"| {kind} | {level:.1%} | {right:.2%} | {wrong:.2%} | {none:.2%} |")


if __name__ == "__main__":
    main()
