"""Attention of real SGLang releases with and without the patch gather-then-cast: the same bits?

    PYTHONPATH=. python benchmarks/capture_attention.py SOURCES cuda

SOURCES holds an unpacked wheel for each release, in a folder named by its version. On `cuda` FlashInfer and CUDA graphs
are real; the model, the scheduler and the pool are not there, or stand-ins. It exits with 1 where bits differ.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from traceql.capture.patches import environment

SCRIPT = Path(__file__).parent.parent / "tests" / "sglang_sources" / "attention.py"
PATCH = "gather-then-cast"
TIMEOUT_S = 100


def compared(package: Path, device: str, shares: str) -> dict[str, list[bool]]:
    """Per kind of batch, whether each one's outputs are the same bits.

    Raises:
        subprocess.CalledProcessError: the release's code failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        variables = environment([PATCH], {PATCH: {"share-prefixes": shares}}, Path(folder))
        if device == "cpu":
            variables["TRITON_INTERPRET"] = "1"
        command = [sys.executable, str(SCRIPT), str(package), device]
        done = subprocess.run(
            command, env={**os.environ, **variables}, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        "eager": [batch["eager"] for batch in found["batches"]],
        "graph": [batch["graph"] for batch in found["batches"]],
        "prefill": [batch["is_same"] for batch in found["prefill"]],
        "rows written in the same pass": [found["written first"], found["prefilled first"]],
        "a wrong row shows": [found["a wrong row shows"]],
    }


def main() -> None:
    """Every release, with shared prefixes gathered once and not."""
    sources, device = Path(sys.argv[1]), sys.argv[2]
    is_same = True
    for release in sorted(sources.iterdir(), key=lambda path: [int(part) for part in path.name.split(".")]):
        for shares in ("on", "off"):
            found = compared(release / "sglang", device, shares)
            is_same = is_same and all(map(all, found.values()))
            counts = (f"{kind} {sum(results)} of {len(results)}" for kind, results in found.items())
            print(f"{release.name}, share-prefixes {shares}:", ", ".join(counts), flush=True)
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
