"""One recording as far as comparing it with another needs: per step what its time went to, small enough to keep.

A recording is a run (all ranks of a job) and selects nothing: a comparison chooses the steps. As a file it is a
*baseline*: a zip of Parquet tables and a manifest, about 100 kB, that can be committed.
"""

import io
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import polars as pl

from traceql.analyses import step_categories
from traceql.analyses.attribution import Attribution
from traceql.analyses.comm import collectives
from traceql.analyses.idle import CAUSES
from traceql.analyses.layering import Layering
from traceql.analyses.pace import idle_by_step
from traceql.analyses.step_facts import step_facts
from traceql.analyses.step_windows import complete_steps
from traceql.errors import InputError, TraceqlError
from traceql.tables import BATCH_SIZE, DEVICE, RANK, STAGE, STEP, Column, Table
from traceql.trace import Trace

FORMAT_VERSION = 1
"""Of baseline files: raised when what is in them changes."""
SUFFIX = ".traceql-baseline"

_STEP = (
    RANK,
    DEVICE,
    STEP,
)

RECORDED_STEPS = Table(
    "recorded_steps",
    "One row per complete, separable step of a recording. Sorted by rank, device, step.",
    *_STEP,
    STAGE,
    BATCH_SIZE,
    Column("wall_ns", pl.Int64, "Length of the window"),
    Column("busy_ns", pl.Int64, "Union of GPU activity in it"),
    Column("kernel_ns", pl.Int64, "Sum of the durations of what the step launched"),
    Column("n_kernels", pl.Int64, "GPU activities launched"),
    Column("n_layers", pl.Int64, "Layers found; 0 where none"),
    Column("n_graph_kernels", pl.Int64, "Activities launched by CUDA graphs"),
    Column("n_python_calls", pl.Int64, "Python frames recorded during the step's annotation", nullable=True),
)

STEP_SHARES = Table(
    "step_shares",
    "One row per step and what its wall went to: kernel categories, and causes of idle time. Over a step wall_ns adds "
    "up to its wall. Sorted by its first five columns.",
    *_STEP,
    Column("kind", pl.String, "category or idle"),
    Column("name", pl.String, "Kernel category, or cause of idle time"),
    Column("group", pl.String, "The category's group; idle for idle time"),
    Column("wall_ns", pl.Int64, "Exclusive time in the window, or idle time"),
    Column("kernel_ns", pl.Int64, "Sum of the durations of what was launched in the step; 0 for idle time"),
    Column("n_kernels", pl.Int64, "GPU activities launched in the step; 0 for idle time"),
)

STEP_KERNELS = Table(
    "step_kernels",
    "One row per step, place in it and kernel name. Sorted by its first six columns.",
    *_STEP,
    Column("role", pl.String, "Where it runs: the layer type's label, prologue, epilogue, between, or not attributed"),
    Column("name", pl.String, "Full name"),
    Column("category", pl.String, "Kernel category"),
    Column("short_name", pl.String, "Readable name"),
    Column("n_kernels", pl.Int64, "How often"),
    Column("kernel_ns", pl.Int64, "Sum of the durations"),
)

STEP_ROLES = Table(
    "step_roles",
    "One row per step and layer type or section. Sorted by its first four columns.",
    *_STEP,
    Column("role", pl.String, "The layer type's label, prologue, epilogue, between, or not attributed"),
    Column("n_layers", pl.Int64, "Layers of the type; 0 for sections"),
    Column("wall_ns", pl.Int64, "Their walls, added up"),
    Column("busy_ns", pl.Int64, "Of it, with GPU activity"),
    Column("kernel_ns", pl.Int64, "Sum of the durations of their activities"),
    Column("n_kernels", pl.Int64, "Their activities"),
)

SEQUENCES = Table(
    "sequences",
    "The kernels of a typical layer of each type in steps of a kind, in order. Sorted by its first four columns.",
    Column("stage", pl.String, "Of the steps: decode, prefill, mixed or unknown"),
    Column("batch_size", pl.Int64, "Of the steps, where the annotation tells", nullable=True),
    Column("role", pl.String, "The layer type's label"),
    Column("position", pl.Int64, "In order of start"),
    Column("name", pl.String, "Full name"),
    Column("short_name", pl.String, "Readable name"),
    Column("category", pl.String, "Kernel category"),
    Column("dur_ns", pl.Int64, "Its duration in that layer"),
)

LAYER_ROLES = Table(
    "layer_roles",
    "One row per layer of the first forward pass of a step: its type. Sorted by layer.",
    Column("layer", pl.Int64, "Layer, 0-based"),
    Column("role", pl.String, "The layer type's label; the commonest where steps differ"),
)

STEP_COLLECTIVES = Table(
    "step_collectives",
    "One row per step and kind of collective. Sorted by its first four columns.",
    *_STEP,
    Column("kind", pl.String, "all_reduce and so on"),
    Column("n_kernels", pl.Int64, "How many"),
    Column("kernel_ns", pl.Int64, "Sum of the durations"),
    Column(
        "waiting_ns", pl.Int64, "Of it, waiting for other ranks; null where one could not be matched", nullable=True
    ),
)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording says about itself; null is unknown."""

    name: str
    gpus: tuple[str, ...] = ()
    engine: str | None = None
    torch_version: str | None = None
    cuda_runtime_version: str | None = None
    nccl_version: str | None = None
    world_size: int | None = None
    n_ranks: int = 0
    step_methods: tuple[str, ...] = ()
    """How the steps were found."""
    record_shapes: bool | None = None
    with_stack: bool | None = None
    profile_memory: bool | None = None
    control_step_ns: float | None = None
    """Mean step without the profiler, where a capture measured it beside the recording."""
    control_tokens_per_s: float | None = None
    """Tokens a second of all requests in those control runs."""


@dataclass(frozen=True)
class Recording:
    """What comparing needs of one recording."""

    facts: Facts
    steps: pl.DataFrame
    """Table `recorded_steps`."""
    shares: pl.DataFrame
    """Table `step_shares`."""
    kernels: pl.DataFrame
    """Table `step_kernels`."""
    roles: pl.DataFrame
    """Table `step_roles`."""
    sequences: pl.DataFrame
    """Table `sequences`."""
    layers: pl.DataFrame
    """Table `layer_roles`."""
    collectives: pl.DataFrame
    """Table `step_collectives`."""

    @classmethod
    def of(cls, trace: Trace) -> "Recording":
        """That of a trace or run."""
        found, layering = Attribution.of(trace), Layering.of(trace)
        complete = complete_steps(found.steps)
        return cls(
            facts=_facts(trace, found.steps),
            steps=_steps(trace, complete, layering),
            shares=_shares(trace, complete),
            kernels=_kernels(found, layering, complete),
            roles=_roles(layering, complete),
            sequences=_sequences(found, layering, complete),
            layers=_layer_roles(layering),
            collectives=_collectives(trace, complete),
        )

    def only(self, wanted: pl.Expr) -> "Recording":
        """The recording with nothing but the steps wanted, and the sequences of the commonest kind of those.

        Args:
            wanted: true for them, over `recorded_steps`.
        """
        steps = self.steps.filter(wanted)
        of_steps = ("shares", "kernels", "roles", "collectives")
        kept = {name: getattr(self, name).join(steps, on=_KEY, how="semi", maintain_order="left") for name in of_steps}
        kind = ["stage", "batch_size"]
        commonest = steps.group_by(kind).len().sort("len", *kind, nulls_last=True).tail(1)
        sequences = self.sequences.join(commonest, on=kind, how="semi", nulls_equal=True, maintain_order="left")
        return replace(self, steps=steps, sequences=sequences, **kept)

    def save(self, path: Path) -> None:
        """Writes it as a baseline file; the caller sees to it that none is lost.

        Raises:
            OSError: it cannot be written.
        """
        path.write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of a baseline file."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            manifest = {"traceql_baseline": FORMAT_VERSION, "facts": self.facts}
            archive.writestr(_entry(_MANIFEST), msgspec.json.format(msgspec.json.encode(manifest)))
            for name in TABLES:
                data = io.BytesIO()
                getattr(self, name).write_parquet(data, compression="zstd")
                archive.writestr(_entry(f"{name}.parquet"), data.getvalue())
        return buffer.getvalue()

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Reads a baseline file.

        Raises:
            InputError: it is none, it is damaged, or another version of traceql wrote it.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}", "Check the path.") from error
        try:
            return cls._read(data)
        except _NewerError as error:
            raise InputError(
                f"{path} is a baseline of format {error}, not {FORMAT_VERSION}",
                "Update traceql, or save it again from its trace with `traceql baseline save`.",
            ) from error
        except _DAMAGE as error:
            raise InputError(f"{path} is not a baseline, or damaged", "Save it again from its trace.") from error

    @classmethod
    def _read(cls, data: bytes) -> "Recording":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            manifest = archive.read(_MANIFEST)
            version = msgspec.json.decode(manifest, type=_Versioned).traceql_baseline
            if version != FORMAT_VERSION:
                raise _NewerError(version)
            frames = {
                name: table.check(pl.read_parquet(io.BytesIO(archive.read(f"{name}.parquet"))))
                for name, table in TABLES.items()
            }
        return cls(facts=msgspec.json.decode(manifest, type=_Manifest).facts, **frames)


class _NewerError(Exception):
    """Another version of the format; its argument says which."""


class _Versioned(msgspec.Struct, frozen=True):
    traceql_baseline: int


class _Manifest(_Versioned, frozen=True):
    facts: Facts


_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, OSError, RuntimeError, ValueError,
    msgspec.MsgspecError, pl.exceptions.PolarsError, TraceqlError,
)  # fmt: skip
"""What reading a damaged zip, JSON or Parquet file raises."""


TABLES = {
    "steps": RECORDED_STEPS,
    "shares": STEP_SHARES,
    "kernels": STEP_KERNELS,
    "roles": STEP_ROLES,
    "sequences": SEQUENCES,
    "layers": LAYER_ROLES,
    "collectives": STEP_COLLECTIVES,
}
"""The frames of a recording."""

_MANIFEST = "manifest.json"
_KEY = ["rank", "device", "step"]
_NOWHERE = "not attributed"


def _entry(name: str) -> zipfile.ZipInfo:
    """An entry of a date that says nothing, so that the same recording is the same file."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _facts(trace: Trace, steps: pl.DataFrame) -> Facts:
    meta = trace.meta
    ranks = {part.rank for part in trace.parts}
    return Facts(
        name=meta.name,
        gpus=tuple(sorted({device.name for part in trace.parts for device in part.devices if device.name})),
        engine=meta.engine,
        torch_version=meta.torch_version,
        cuda_runtime_version=meta.cuda_runtime_version,
        nccl_version=meta.nccl_version,
        world_size=meta.world_size,
        n_ranks=len(ranks),
        step_methods=tuple(sorted(method.replace("_", " ") for method in steps["method"].unique())),
        record_shapes=meta.record_shapes,
        with_stack=meta.with_stack,
        profile_memory=meta.profile_memory,
    )


def _steps(trace: Trace, complete: pl.DataFrame, layering: Layering) -> pl.DataFrame:
    n_layers = layering.layers.group_by(_KEY).agg(n_layers=pl.len().cast(pl.Int64))
    facts = step_facts(trace).select(*_KEY, "n_graph_kernels", "n_python_calls")
    rows = complete.join(n_layers, on=_KEY, how="left", validate="1:1").join(facts, on=_KEY, how="left", validate="1:1")
    rows = rows.with_columns(pl.col("n_layers", "n_graph_kernels").fill_null(0)).sort(_KEY)
    return RECORDED_STEPS.check(rows.select(RECORDED_STEPS.names))


def _shares(trace: Trace, complete: pl.DataFrame) -> pl.DataFrame:
    categories = step_categories(trace).select(
        *_KEY, pl.lit("category").alias("kind"), pl.col("category").alias("name"), "group",
        pl.col("exclusive_ns").alias("wall_ns"), "kernel_ns", "n_kernels",
    )  # fmt: skip
    causes = idle_by_step(trace).select(*_KEY, pl.col([f"{cause}_ns" for cause in CAUSES]))
    causes = causes.unpivot(index=_KEY, value_name="wall_ns")
    idle = causes.filter(pl.col("wall_ns") > 0).select(
        *_KEY, pl.lit("idle").alias("kind"), pl.col("variable").str.strip_suffix("_ns").alias("name"),
        pl.lit("idle").alias("group"), "wall_ns", pl.lit(0, pl.Int64).alias("kernel_ns"),
        pl.lit(0, pl.Int64).alias("n_kernels"),
    )  # fmt: skip
    rows = pl.concat([categories, idle]).join(complete, on=_KEY, how="semi")
    return STEP_SHARES.check(rows.sort(STEP_SHARES.names[:5]))


def _with_roles(layering: Layering, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with `role`: what the layer type is, else the section.

    Without the module class in front, which only recordings with stacks have; types alike in words are numbered.
    """
    blocks = pl.col("label").str.split(": ").list.last()
    number = pl.int_range(1, pl.len() + 1).over(blocks)
    label = pl.when(number > 1).then(pl.format("{} ({})", blocks, number)).otherwise(blocks)
    labels = layering.types.sort("layer_type").select("layer_type", type_label=label)
    section = pl.col("section").fill_null(_NOWHERE)
    return frame.join(labels, on="layer_type", how="left", validate="m:1").with_columns(
        role=pl.coalesce("type_label", section)
    )


def _kernels(found: Attribution, layering: Layering, complete: pl.DataFrame) -> pl.DataFrame:
    columns = (*_KEY, "kernel_id", "name", "short_name", "category", "dur_ns")
    activities = found.activities.select(columns).join(complete, on=_KEY, how="semi")
    placed = layering.placed.select("kernel_id", "section", "layer_type")
    rows = _with_roles(layering, activities.join(placed, on="kernel_id", validate="1:1"))
    key = STEP_KERNELS.names[:7]
    sums = rows.group_by(key).agg(n_kernels=pl.len().cast(pl.Int64), kernel_ns=pl.sum("dur_ns"))
    return STEP_KERNELS.check(sums.sort(key).select(STEP_KERNELS.names))


def _roles(layering: Layering, complete: pl.DataFrame) -> pl.DataFrame:
    layers = layering.layers.select(*_KEY, "model_pass", "layer", "layer_type")
    sections = layering.sections.join(complete, on=_KEY, how="semi")
    rows = _with_roles(layering, sections.join(layers, on=[*_KEY, "model_pass", "layer"], how="left", validate="1:1"))
    sums = rows.group_by(*_KEY, "role").agg(
        n_layers=pl.col("layer").is_not_null().sum().cast(pl.Int64),
        wall_ns=pl.sum("wall_ns"), busy_ns=pl.sum("busy_ns"), kernel_ns=pl.sum("kernel_ns"),
        n_kernels=pl.sum("n_kernels"),
    )  # fmt: skip
    return STEP_ROLES.check(sums.sort(*_KEY, "role").select(STEP_ROLES.names))


def _sequences(found: Attribution, layering: Layering, complete: pl.DataFrame) -> pl.DataFrame:
    """The kernels of one layer of each type: of those with the usual number of kernels the one of median wall.

    Streams one after the other, the one with most kernels first: in which order two of them interleave is chance.
    """
    layer, kind = [*_KEY, "model_pass", "layer"], ["stage", "batch_size"]
    layers = layering.layers.join(complete.select(*_KEY, *kind), on=_KEY, validate="m:1")
    group = [*kind, "layer_type"]
    timed = layers.filter(pl.col("wall_ns").is_not_null())
    usual = timed.filter(pl.col("n_kernels") == pl.col("n_kernels").mode().max().over(group))
    ordered = usual.sort(*group, "wall_ns", *layer)
    middle = (pl.len() - 1) // 2
    typical = ordered.filter(pl.int_range(pl.len()).over(group) == middle.over(group))
    inside = layering.placed.join(found.activities.drop("section"), on="kernel_id", validate="1:1").join(
        typical.select(*layer, *kind), on=layer, validate="m:1"
    )
    n_on_stream = pl.len().over(*layer, "stream")
    ordered = _with_roles(layering, inside).with_columns(n_on_stream=n_on_stream).sort(
        *kind, "role", pl.col("n_on_stream") * -1, "stream", "start_ns", "kernel_id"
    )  # fmt: skip
    position = pl.int_range(pl.len(), dtype=pl.Int64).over(*kind, "role")
    rows = ordered.with_columns(position=position).filter(pl.col("dur_ns").is_not_null())
    return SEQUENCES.check(rows.select(SEQUENCES.names))


def _layer_roles(layering: Layering) -> pl.DataFrame:
    first = layering.layers.filter(pl.col("model_pass") == 0).with_columns(section=pl.lit("layer"))
    roles = _with_roles(layering, first).group_by("layer").agg(pl.col("role").mode().sort().first())
    return LAYER_ROLES.check(roles.sort("layer"))


def _collectives(trace: Trace, complete: pl.DataFrame) -> pl.DataFrame:
    rows = collectives(trace).filter(pl.col("step").is_not_null()).join(complete, on=_KEY, how="semi")
    waiting = pl.when(pl.col("waiting_ns").null_count() == 0).then(pl.sum("waiting_ns"))
    sums = rows.group_by(*_KEY, "kind").agg(
        n_kernels=pl.len().cast(pl.Int64), kernel_ns=pl.sum("dur_ns"), waiting_ns=waiting
    )
    return STEP_COLLECTIVES.check(sums.sort(*_KEY, "kind").select(STEP_COLLECTIVES.names))
