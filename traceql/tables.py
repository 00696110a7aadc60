"""The contract of every table: its columns, their types, units and meaning.

Time is whole nanoseconds since the first event of the trace. Null means unknown. A key is `<row>_id`, the same
name wherever it points from. Frames are checked where they enter or leave, all faults in one message.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceql.errors import TraceqlError

Dtype = type[pl.DataType] | pl.DataType

_UNITS = (
    ("gb_per_s", "GB/s"),
    ("bytes_per_s", "B/s"),
    ("tokens_per_s", "tokens/s"),
    ("ns_per_step", "ns/step"),
    ("ns_per_kernel", "ns/kernel"),
    ("_ns", "ns"),
    ("bytes", "B"),
    ("bytes_min", "B"),
    ("bytes_max", "B"),
    ("_ppm", "ppm"),
    ("share", "fraction"),
    ("_frac", "fraction"),
    ("confidence", "fraction"),
)
"""What a name ends with, and the unit that this says; the first that fits."""


@dataclass(frozen=True)
class Column:
    """One column: its name (the unit is its suffix), dtype, meaning, and whether it may be null."""

    name: str
    dtype: Dtype
    doc: str
    nullable: bool = False

    @property
    def unit(self) -> str | None:
        """The unit that its name says; None for counts, keys, texts and flags."""
        if not pl.Schema({"": self.dtype})[""].is_numeric():
            return None
        return next((unit for suffix, unit in _UNITS if self.name.endswith(suffix)), None)

    @property
    def type_name(self) -> str:
        """Its dtype, as polars names it."""
        return str(pl.Schema({"": self.dtype})[""])

    @property
    def document(self) -> dict[str, Any]:
        """As plain data: name, dtype, unit, whether it may be null, meaning."""
        return {
            "name": self.name,
            "dtype": self.type_name,
            "unit": self.unit,
            "nullable": self.nullable,
            "doc": self.doc,
        }


class Table:
    """A named list of columns that a frame must have, in this order."""

    def __init__(self, name: str, doc: str, *columns: Column) -> None:
        self.name = name
        self.doc = doc
        self.columns = columns

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def schema(self) -> pl.Schema:
        """Column names and dtypes, in order."""
        return pl.Schema({column.name: column.dtype for column in self.columns})

    @property
    def names(self) -> list[str]:
        """Column names, in order."""
        return [column.name for column in self.columns]

    def empty(self) -> pl.DataFrame:
        """A frame of this table without rows."""
        return pl.DataFrame(schema=self.schema)

    def check(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The same frame, columns in the table's order.

        Raises:
            TraceqlError: a column is missing, too many, of another dtype, or null where it may not be. All
                faults are in one message.
        """
        faults = list(self._faults(frame))
        if faults:
            raise TraceqlError(f"table {self.name}: " + "; ".join(faults), "This is a defect of traceql.")
        return frame.select(self.names)

    def _faults(self, frame: pl.DataFrame) -> Iterator[str]:
        for column in self.columns:
            if column.name not in frame.columns:
                yield f"column {column.name} is missing"
            elif frame.schema[column.name] != column.dtype:
                yield f"column {column.name} is {frame.schema[column.name]}, not {column.dtype}"
            elif not column.nullable and frame[column.name].null_count():
                yield f"column {column.name} has {frame[column.name].null_count()} nulls"
        for name in frame.columns:
            if name not in self.names:
                yield f"column {name} is not in the table"


RANK = Column("rank", pl.Int16, "Process rank")
DEVICE = Column("device", pl.Int16, "GPU ordinal")
STEP = Column("step", pl.Int64, "Step")
STAGE = Column("stage", pl.String, "decode, prefill, mixed or unknown")
BATCH_SIZE = Column("batch_size", pl.Int64, "Running requests, where the annotation tells", nullable=True)
KERNEL_ID = Column("kernel_id", pl.Int64, "GPU activity")
"""Columns that many tables have."""


_RANK = Column("rank", pl.Int16, "Process rank; 0 when the trace names none")
_START = Column("start_ns", pl.Int64, "Start, since the trace's first event")
_DUR = Column("dur_ns", pl.Int64, "Length")
_THREAD = Column("thread_id", pl.Int32, "Host thread, a row of `threads`")


def _key(name: str, row: str) -> Column:
    return Column(name, pl.Int64, f"Key: one {row}")


KERNELS = Table(
    "kernels",
    "One row per GPU activity: a kernel, memcpy or memset on a device stream. Sorted by start.",
    _key("kernel_id", "GPU activity"),
    _RANK,
    Column("device", pl.Int16, "GPU ordinal within the process"),
    Column("stream", pl.Int64, "Stream number as recorded; unique within a device only"),
    Column("kind", pl.String, "kernel, memcpy or memset"),
    Column("name", pl.String, "Full name as recorded"),
    Column("short_name", pl.String, "Readable name: no namespaces, arguments or boilerplate"),
    Column("category", pl.String, "What it is for, from rules/kernel_categories.yaml"),
    Column("group", pl.String, "The category's group: copy, gemm, nccl, attention, moe, other"),
    Column("start_ns", pl.Int64, "Start, since the trace's first event; null when never timed", nullable=True),
    Column("dur_ns", pl.Int64, "Length; null when never timed", nullable=True),
    Column("correlation", pl.Int64, "Correlation id shared with the launch; a recorded 0 is null", nullable=True),
    Column("launch_id", pl.Int64, "The runtime or driver call that launched it", nullable=True),
    Column("op_id", pl.Int64, "The innermost CPU op around that call, on the launching thread", nullable=True),
    Column("graph_id", pl.Int64, "CUDA graph, where recorded", nullable=True),
    Column("graph_node_id", pl.Int64, "Node of the CUDA graph, where recorded", nullable=True),
    Column("annotation", pl.String, "What a graph's node was marked as during capture, where recorded", nullable=True),
    Column("grid_x", pl.Int64, "Blocks in x", nullable=True),
    Column("grid_y", pl.Int64, "Blocks in y", nullable=True),
    Column("grid_z", pl.Int64, "Blocks in z", nullable=True),
    Column("block_x", pl.Int64, "Threads of a block in x", nullable=True),
    Column("block_y", pl.Int64, "Threads of a block in y", nullable=True),
    Column("block_z", pl.Int64, "Threads of a block in z", nullable=True),
    Column("bytes", pl.Int64, "Bytes moved, as recorded (memcpy and memset)", nullable=True),
    Column("src_dtype", pl.String, "Dtype read, of a cast or copy", nullable=True),
    Column("dst_dtype", pl.String, "Dtype written, of a cast or copy", nullable=True),
    Column("n_elements_min", pl.Int64, "Least number of elements of a cast or copy", nullable=True),
    Column("n_elements_max", pl.Int64, "Greatest number of elements of a cast or copy", nullable=True),
    Column(
        "evidence",
        pl.String,
        "How dtype and size are known: op_args, capture_trace, kernel_name, grid (size only), or null",
        nullable=True,
    ),
)

LAUNCHES = Table(
    "launches",
    "One row per call of the CUDA or HIP runtime or driver on the host, launches and others. Sorted by start.",
    _key("launch_id", "runtime or driver call"),
    _RANK,
    _THREAD,
    Column("name", pl.String, "Name of the call, e.g. cudaLaunchKernel"),
    Column("api", pl.String, "runtime or driver"),
    _START,
    _DUR,
    Column("correlation", pl.Int64, "Correlation id; a recorded 0 is null", nullable=True),
    Column(
        "external_id",
        pl.Int64,
        "`External id` as recorded; in many traces a copy of the correlation",
        nullable=True,
    ),
    Column("op_id", pl.Int64, "The innermost CPU op around the call on its thread", nullable=True),
)

OPS = Table(
    "ops",
    "One row per CPU operator. Sorted by start.",
    _key("op_id", "CPU operator"),
    _RANK,
    _THREAD,
    Column("name", pl.String, "Operator, e.g. aten::copy_"),
    _START,
    _DUR,
    Column("external_id", pl.Int64, "`External id` as recorded", nullable=True),
    Column(
        "parent_id",
        pl.Int64,
        "The innermost op that contains this one whole, on the same thread",
        nullable=True,
    ),
    Column("depth", pl.Int32, "Number of ops around this one"),
    Column(
        "args",
        pl.String,
        "Arguments as recorded, JSON text (shapes, dtypes, strides, concrete inputs)",
        nullable=True,
    ),
)

PYTHON_CALLS = Table(
    "python_calls",
    "One row per Python frame (with_stack). Sorted by start.",
    _key("python_call_id", "Python frame"),
    _RANK,
    _THREAD,
    Column("name", pl.String, "file(line): function, a built-in, or nn.Module: Class_n"),
    _START,
    Column("dur_ns", pl.Int64, "Length; a frame that outlasts its caller is cut at the caller's end"),
    Column("parent_id", pl.Int64, "The calling frame, a row of this table", nullable=True),
    Column("module_class", pl.String, "Class of an `nn.Module: Class_n` frame", nullable=True),
    Column("module_instance", pl.Int64, "n of an `nn.Module: Class_n` frame", nullable=True),
)

SPANS = Table(
    "spans",
    "One row per user annotation, on the host or its copy on the GPU, and per profiler overhead. Sorted by start.",
    _key("span_id", "annotation"),
    _RANK,
    Column("side", pl.String, "cpu, gpu or overhead (the profiler's own)"),
    _THREAD,
    Column("name", pl.String, "Text of the annotation"),
    _START,
    _DUR,
)

SYNCS = Table(
    "syncs",
    "One row per wait: a host call that waits for the GPU, or a recorded wait on the GPU. Sorted by start.",
    _key("sync_id", "wait"),
    _RANK,
    Column("side", pl.String, "cpu: a runtime call that waits; gpu: a cuda_sync event"),
    Column("name", pl.String, "Name of the call or event"),
    _THREAD,
    Column("device", pl.Int16, "GPU ordinal", nullable=True),
    Column("stream", pl.Int64, "Stream; null for a wait on the whole device", nullable=True),
    _START,
    _DUR,
    Column("correlation", pl.Int64, "Correlation id", nullable=True),
)

MEMORY = Table(
    "memory",
    "One row per allocator event (profile_memory). Sorted by time.",
    _key("memory_id", "allocation or release"),
    _RANK,
    _THREAD,
    Column("time_ns", pl.Int64, "When, since the trace's first event"),
    Column("device", pl.Int16, "GPU ordinal; null for host memory", nullable=True),
    Column("bytes", pl.Int64, "Size; negative for a release", nullable=True),
    Column("addr", pl.UInt64, "Address", nullable=True),
    Column("total_allocated_bytes", pl.Int64, "Allocated after the event", nullable=True),
    Column("total_reserved_bytes", pl.Int64, "Reserved after the event", nullable=True),
)

THREADS = Table(
    "threads",
    "One row per (process, thread) that recorded an event.",
    Column("thread_id", pl.Int32, "Key: one thread or stream row of the trace"),
    _RANK,
    Column("pid", pl.String, "Process as recorded"),
    Column("tid", pl.String, "Thread as recorded"),
    Column("process_name", pl.String, "process_name metadata", nullable=True),
    Column("thread_name", pl.String, "thread_name metadata", nullable=True),
)

INPUT_TABLES = (KERNELS, LAUNCHES, OPS, PYTHON_CALLS, SPANS, SYNCS, MEMORY, THREADS)
