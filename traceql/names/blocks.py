"""How many elements a block of an ATen element-wise kernel takes, from its name."""

import re
from dataclasses import dataclass

from traceql.names.limits import MAX_READ

_LOOP = re.compile(
    r"\b(?P<loop>(?:unrolled_|vectorized_)?elementwise_kernel|elementwise_kernel_manual_unroll)<"
    r"(?:(?:\(int\))?(?P<first>\d{1,4}), ?)?(?:(?:\(int\))?(?P<second>\d{1,2}), ?)?"
)
_UNROLLED_BY = re.compile(
    r"\barray<char ?\*, ?(?:\([\w ]+\))?\dU?L?u?l?>, ?(?:\(int\))?(\d{1,2}), ?TrivialOffset", re.IGNORECASE
)
_UNROLLED = 4
"""Elements a thread of `unrolled_elementwise_kernel`, where the name does not say."""
_VECTORIZED = {8: (8, 8), 4: (4, 8), 2: (4, 8)}
"""Elements a thread of `vectorized_elementwise_kernel`, least and most, by its first template argument: vectors of 8
came together with 8 elements a thread (PyTorch 2.7); vectors of 4 and 2 are used with 4 before and 8 since."""
_ONE_BYTE = re.compile(r"lambda\((?:c10::Float8_\w+|signed char|unsigned char|bool)\)")
"""Elements of one byte on both sides: up to 16 a thread are said of them, and none has been seen."""
_CUDA_THREADS = 128
"""Threads of a block of these two on NVIDIA GPUs. With other numbers (AMD, the oldest PyTorch) we know no rule."""


@dataclass(frozen=True)
class BlockWork:
    """How many elements a block of an ATen element-wise kernel takes; the last block may take fewer."""

    n_threads: int
    """Threads of a block for which this holds."""
    least: int
    most: int
    """Not `least` where versions of PyTorch differ and the name does not tell them apart."""


def block_work(name: str) -> BlockWork | None:
    """The work of one block, from the template arguments; null for other kernels and where no rule is known to hold.

    Held against 70 thousand recorded casts and copies, the launching op of which tells the number of elements.
    """
    name = name[:MAX_READ]
    found = _LOOP.search(name)
    if found is None:
        return None
    first, second = (int(found[group]) if found[group] else None for group in ("first", "second"))
    if found["loop"] == "vectorized_elementwise_kernel":
        least, most = (0, 0) if _ONE_BYTE.search(name) else _VECTORIZED.get(first or 0, (0, 0))
        return BlockWork(_CUDA_THREADS, _CUDA_THREADS * least, _CUDA_THREADS * most) if least else None
    if found["loop"] == "unrolled_elementwise_kernel":
        named = _UNROLLED_BY.search(name)
        work = _CUDA_THREADS * (int(named[1]) if named else _UNROLLED)
        return BlockWork(_CUDA_THREADS, work, work) if work else None
    return BlockWork(first, first * second, first * second) if first and second else None
