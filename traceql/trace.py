"""A loaded trace: its tables as polars LazyFrames, what it says about itself, the oddities met."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import polars as pl

from traceql.categories import Categories, load_categories
from traceql.errors import InputError
from traceql.ingest.annotate import annotate_kernels
from traceql.ingest.cache import CacheKey, read, write
from traceql.ingest.links import external_id
from traceql.ingest.meta import TraceMeta
from traceql.ingest.quirks import Quirk
from traceql.tables import OPS

FORMAT_VERSION = 5
"""Of the cached tables: raised whenever what a trace file is turned into changes."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One profiler file of one process. The tables are described in `traceql.tables`."""

    meta: TraceMeta
    parts: tuple[TraceMeta, ...]
    """One for each file: this one, or those of a run (`traceql.run`), in order of rank."""
    quirks: tuple[Quirk, ...]
    categories: Categories
    kernels: pl.LazyFrame
    launches: pl.LazyFrame
    ops: pl.LazyFrame
    python_calls: pl.LazyFrame
    spans: pl.LazyFrame
    syncs: pl.LazyFrame
    memory: pl.LazyFrame
    threads: pl.LazyFrame
    pieces: pl.LazyFrame | None = field(default=None, repr=False)
    """Where in the file its events stand (`traceql.ingest.piece_extents`); None of a run."""
    _cache_key: CacheKey | None = field(default=None, init=False, repr=False)
    """Set where the tables are those of a cached file; a changed copy of the trace has none."""
    _kept: dict[str, dict[str, pl.DataFrame]] = field(
        default_factory=dict[str, dict[str, pl.DataFrame]], init=False, repr=False
    )

    def kept(self, name: str, make: Callable[[], dict[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
        """Frames worked out from this trace: once, and kept beside it in the cache if it has a place there.

        Args:
            name: what they are, with all that they depend on besides the file (a version of the method, categories).
            make: works them out.
        """
        if name not in self._kept:
            key = self._cache_key.beside(name) if self._cache_key else None
            entry = read(key)
            if entry is not None:
                self._kept[name] = {table: frame.collect() for table, frame in entry.tables.items()}
            else:
                self._kept[name] = make()
                write(key, self._kept[name], b"{}")
        return self._kept[name]


class _Info(msgspec.Struct, frozen=True):
    meta: TraceMeta
    quirks: tuple[Quirk, ...]


def load(
    path: str | Path,
    *,
    cache: bool = True,
    strict: bool = False,
    categories: Path | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    n_workers: int | None = None,
) -> Trace:
    """Reads a trace file, whatever its compression; `-` is standard input.

    Args:
        path: the file.
        cache: keep the tables in the user's cache folder, so that the next load takes a fraction of a second.
            A cache that cannot be written is done without.
        strict: refuse a trace of which anything was lost.
        categories: a YAML file of kernel categories that go before the built-in ones.
        progress: called with the bytes read so far and the size of the file (None for standard input).
        n_workers: processes to decode in; by default one a core, at most four.

    Raises:
        InputError: not a trace, or (strict) not without loss.
        RuleError: the category file is wrong.
    """
    known = load_categories(categories)
    key = CacheKey.of(Path(path), FORMAT_VERSION) if cache and str(path) != "-" else None
    entry = read(key)
    if entry is not None:
        info = msgspec.json.decode(entry.info, type=_Info)
        tables = entry.tables
    else:
        from traceql.ingest.reader import read_trace  # noqa: PLC0415 - what is read from the cache needs no reader

        found = read_trace(path, progress=progress, n_workers=n_workers)
        info = _Info(found.meta, found.quirks)
        tables = {name: frame.lazy() for name, frame in found.tables.items()}
        write(key, found.tables, msgspec.json.encode(info))
    if strict:
        _refuse_losses(info)
    trace = _trace(info, tables, known)
    object.__setattr__(trace, "_cache_key", key)  # frozen for everybody else
    return trace


def _trace(info: _Info, tables: dict[str, pl.LazyFrame], categories: Categories) -> Trace:
    frames = {name: frame for name, frame in tables.items() if name != "kernels"}
    frames["ops"] = tables["ops"].with_columns(external_id=external_id()).select(OPS.names)
    kernels = annotate_kernels(tables["kernels"], categories)
    return Trace(
        meta=info.meta, parts=(info.meta,), quirks=info.quirks, categories=categories, kernels=kernels, **frames
    )


def _refuse_losses(info: _Info) -> None:
    losses = [f"{quirk.id} ({quirk.count}): {quirk.text}" for quirk in info.quirks if quirk.effect == "lost"]
    if losses:
        raise InputError(
            f"{info.meta.name} cannot be read without loss: " + " ".join(losses),
            "Without --strict (strict=False) what is left is read, and the loss is shown.",
        )
