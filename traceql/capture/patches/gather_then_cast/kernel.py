"""The kernel that gathers rows of the KV pool, casts them, and packs them."""
# torch and triton are the server's; without them nothing in this file has a type.
# pyright: basic, reportMissingImports=false

import torch
import triton
import triton.language as tl

TILE_ROWS, N_WARPS, PROGRAMS_PER_SM = 8, 4, 12
"""What came out fastest on an H200 for rows of 512 + 64: 3.9 TB/s."""


@triton.jit(do_not_specialize=["count"])
def _gather_cast(pool, slots, count, packed, LEFT: tl.constexpr, RIGHT: tl.constexpr, TILE: tl.constexpr):  # noqa: N803, PLR0917
    # A fixed number of programs takes tiles in turn, as the number of rows is known on the device alone. `count` is a
    # place in a longer array, so its alignment is not the same in each call: unspecialized, one compilation serves all.
    n_rows = tl.load(count)
    left = tl.arange(0, LEFT)[None, :]
    right = LEFT + tl.arange(0, RIGHT)[None, :]
    for start in range(tl.program_id(0) * TILE, n_rows, tl.num_programs(0) * TILE):
        rows = start + tl.arange(0, TILE)
        is_row = rows < n_rows
        sources = pool + tl.load(slots + rows, mask=is_row, other=0).to(tl.int64)[:, None] * (LEFT + RIGHT)
        targets = packed + rows.to(tl.int64)[:, None] * (LEFT + RIGHT)
        left_values = tl.load(sources + left, mask=is_row[:, None], eviction_policy="evict_first")
        right_values = tl.load(sources + right, mask=is_row[:, None], eviction_policy="evict_first")
        tl.store(targets + left, left_values.to(packed.dtype.element_ty), mask=is_row[:, None])
        tl.store(targets + right, right_values.to(packed.dtype.element_ty), mask=is_row[:, None])


def gather_cast(pool, slots, count, packed, *, left, n_programs):
    """Fills `packed[i]` with `pool[slots[i]]` in packed's type, for each i below `count[0]`; other rows stay.

    Args:
        pool: [slots, 1, width], contiguous.
        slots: int32, at least `count[0]` of them.
        count: int32, on the device.
        packed: [rows, 1, width], contiguous, at least `count[0]` rows.
        left: columns before the border between a row's two parts; both widths are powers of two.
        n_programs: size of the launch grid.
    """
    right = pool.shape[-1] - left
    launch = _gather_cast[(n_programs,)]  # pyright: ignore[reportIndexIssue] - triton's way to give the grid
    launch(pool, slots, count, packed, LEFT=left, RIGHT=right, TILE=TILE_ROWS, num_warps=N_WARPS)


def n_programs_for(n_rows, device):
    """The launch grid for up to this many rows: enough to fill the device, none without work."""
    n_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(triton.cdiv(n_rows, TILE_ROWS), n_sms * PROGRAMS_PER_SM))
