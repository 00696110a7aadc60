"""What a kernel's name says: a readable short form, the dtypes that an ATen copy kernel converts, its work a block.

Names come as Kineto, nsys or rocprof demangled them, mangled, or made up by a code generator. They are
hostile input: nothing here raises on any text, and time is linear in the first 5,000 characters; the rest is
not read.
"""

from traceql.names.blocks import BlockWork, block_work
from traceql.names.copies import CopyDtypes, copy_dtypes
from traceql.names.dtypes import ITEM_BYTES, torch_dtype
from traceql.names.limits import MAX_SHORT
from traceql.names.short_names import short_name

__all__ = [
    "ITEM_BYTES",
    "MAX_SHORT",
    "BlockWork",
    "CopyDtypes",
    "block_work",
    "copy_dtypes",
    "short_name",
    "torch_dtype",
]
