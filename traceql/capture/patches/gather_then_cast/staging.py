"""The packed rows, and the lists that say which slots they come from and where the attention finds them."""
# torch is the server's; without it nothing in this file has a type.
# pyright: basic, reportMissingImports=false

import torch

from . import kernel

LISTED_PER_ROW = 8
"""How many times as long as the buffer a list of shared slots may be; an entry takes 8 bytes, a row over 1,000."""


class Staging:
    """The buffer of packed rows: one for all layers, whose attention runs one after the other.

    Args:
        n_rows: rows that it holds.
        n_listed: most entries that a batch's list of slots may have; above `n_rows` only where slots are shared.
        pool: one layer's part of the KV pool, [slots, 1, width].
        left: columns before the border between a row's two parts.
        dtype: that the attention wants.
        shares: whether a slot that stands in the list more than once is packed once.
    """

    def __init__(self, *, n_rows, n_listed, pool, left, dtype, shares):
        self.n_rows, self.n_slots, self.left = n_rows, pool.shape[0], left
        self.n_listed = n_listed if shares else n_rows
        self.packed = torch.zeros((n_rows, 1, pool.shape[-1]), dtype=dtype, device=pool.device)
        self.shared = SharedSlots(self.n_listed, n_rows, self.n_slots, pool.device) if shares else None
        self.positions = self.shared.positions if self.shared is not None else self._one_to_one()

    def holds(self, n_listed):
        """Whether a batch with this many entries in its list fits; how many are the same only the device knows."""
        holds_whole_pool = self.shared is not None and self.n_rows >= self.n_slots
        return n_listed <= self.n_rows or (holds_whole_pool and n_listed <= self.n_listed)

    def _one_to_one(self):
        """Each entry of a list stands in the buffer where it stands in the list."""
        return torch.arange(self.n_rows, dtype=torch.int32, device=self.packed.device)


class SharedSlots:
    """A list of slots, each once, and where each entry of the list that it was made from stands in it.

    Made anew for each batch, by the device alone: the host does not wait. The addresses never change, so that a CUDA
    graph can read what is there when it is replayed.
    """

    def __init__(self, n_listed, n_rows, n_slots, device):
        self.positions = torch.zeros(n_listed, dtype=torch.int32, device=device)
        self.slots = torch.zeros(n_rows, dtype=torch.int32, device=device)
        self.count = torch.zeros(1, dtype=torch.int32, device=device)
        self._order = torch.arange(n_listed, dtype=torch.int32, device=device)
        self._owner = torch.zeros(n_slots, dtype=torch.int32, device=device)

    def fill(self, listed):
        """Takes a list of at least one slot.

        Of entries with the same slot any one becomes its owner, whichever writes last. Owners are counted in the order
        of the list, and each other entry stands where its owner does. So it may differ from one call to the next
        *where* a row is packed, never what an entry finds there.
        """
        entries, order = listed.long(), self._order[: len(listed)]
        self._owner[entries] = order
        owners = self._owner[entries]
        places = torch.cumsum(owners == order, 0, dtype=torch.int32)  # from 1; right at owners, where it counts itself
        positions = places[owners.long()] - 1
        self.positions[: len(listed)] = positions
        self.slots[positions.long()] = listed  # equal entries write the same value to the same place
        self.count.copy_(places[-1:])


class Gather:
    """One plan's gather: which slots to pack, and how many of them.

    Args:
        staging: where to.
        slots: int32; what is read when the kernel runs, which under a CUDA graph is later, and again and again.
        count: int32, their number on the device.
        n_rows: the most there can be, for the size of the launch.
    """

    def __init__(self, staging, slots, count, n_rows):
        self.staging = staging
        self._slots, self._count = slots, count
        self._n_programs = kernel.n_programs_for(n_rows, slots.device)

    def __call__(self, pool):
        """The packed rows of one layer's pool."""
        staging = self.staging
        kernel.gather_cast(
            pool, self._slots, self._count, staging.packed, left=staging.left, n_programs=self._n_programs
        )
        return staging.packed
