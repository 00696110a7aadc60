"""Prints, as JSON, how the kernel and the list of shared slots compare with what plain torch makes of the same.

Argument: the folder of the patch. Needs torch and triton with TRITON_INTERPRET=1. Values that are not numbers are left
out: Triton's interpreter casts them otherwise than a GPU does.
"""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import importlib.util
import json
import random
import sys

import torch

spec = importlib.util.spec_from_file_location(
    "patch", f"{sys.argv[1]}/__init__.py", submodule_search_locations=[sys.argv[1]]
)
assert spec is not None
assert spec.loader is not None
patch = importlib.util.module_from_spec(spec)
sys.modules["patch"] = patch
spec.loader.exec_module(patch)
kernel, staging = sys.modules["patch.kernel"], sys.modules["patch.staging"]
torch.manual_seed(1)
random.seed(1)

N_SLOTS = 300


def gathers(dtype: torch.dtype, left: int, right: int, n_rows: int, n_programs: int) -> bool:
    """Whether the kernel gathers as many rows as it is told, bit for bit, and touches no others."""
    pool = torch.randint(0, 256, (N_SLOTS, 1, left + right), dtype=torch.uint8).view(dtype)
    slots = torch.randint(0, N_SLOTS, (64,), dtype=torch.int32)
    count = torch.tensor([99, n_rows], dtype=torch.int32)[1:]
    packed = torch.full((48, 1, left + right), 7.0, dtype=torch.bfloat16)
    kernel.gather_cast(pool, slots, count, packed, left=left, n_programs=n_programs)
    expected = pool.to(torch.bfloat16)[slots[:n_rows].long()]
    is_same = (packed[:n_rows].view(torch.int16) == expected.view(torch.int16)) | ~expected.isfinite()
    return bool(is_same.all()) and bool((packed[n_rows:] == 7).all())


def shares(n_listed: int, n_slots: int) -> bool:
    """Whether each slot of a list is there once, and each entry of the list finds its own."""
    shared = staging.SharedSlots(200, 150, N_SLOTS, "cpu")
    for _ in range(2):  # what an earlier list left behind does not matter
        some = random.sample(range(N_SLOTS), n_slots)
        listed = torch.tensor([random.choice(some) for _ in range(n_listed)], dtype=torch.int32)
        shared.fill(listed)
        n_packed = int(shared.count)
        packed = shared.slots[:n_packed]
        finds = packed[shared.positions[:n_listed].long()]
        if n_packed != len(listed.unique()) or len(packed.unique()) != n_packed or not torch.equal(finds, listed):
            return False
    return True


print(
    json.dumps(
        {
            "kernel": {
                f"{dtype} {left}+{right} {n_rows} rows, {n_programs} programs": gathers(
                    dtype, left, right, n_rows, n_programs
                )
                for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
                for left, right in ((512, 64), (32, 16))
                for n_rows, n_programs in ((0, 2), (1, 3), (7, 1), (8, 2), (9, 2), (37, 3), (48, 2), (48, 9))
            },
            "shared": {
                f"{n_listed} entries of {n_slots} slots": shares(n_listed, n_slots)
                for n_listed, n_slots in ((1, 1), (2, 1), (50, 1), (50, 20), (150, 150), (200, 100), (200, 150))
            },
        }
    )
)
