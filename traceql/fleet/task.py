"""One file into a store's tables: what a worker does, wherever it runs. It commits nothing."""

import io
import os
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import polars as pl

from traceql.capture.manifest import capture_of, sha256
from traceql.diffing import pace_of
from traceql.errors import InputError, TraceqlError
from traceql.fleet.kept import frames_of
from traceql.fleet.manifest import DataFile, Entry, Facts, Recipe, data_path
from traceql.fleet.sources import Source, host_of, origin_of, placed, recorded_at, remote_at
from traceql.fleet.storage import Storage, storage_at
from traceql.fleet.store import Store
from traceql.trace import load


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A file to ingest."""

    source: Source
    store: str
    recipe: Recipe
    tables: tuple[str, ...]
    run: str | None = None
    """The name asked for its run."""
    categories: str | None = None
    """File of own kernel categories."""
    n_decoders: int = 1
    """Processes to decode in."""

    def is_met_by(self, entry: Entry) -> bool:
        """Whether an entry of the same content is what this task would make."""
        is_run = self.run in (None, entry.asked_run, entry.run)
        return is_run and entry.recipe == self.recipe and {*self.tables} <= {*entry.tables, *entry.absent}


class Made(msgspec.Struct, frozen=True, tag=True):
    """The data files are in the store; the entry waits to be committed."""

    entry: Entry


class Known(msgspec.Struct, frozen=True, tag=True):
    """The same content is in the store."""

    entry: Entry


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The file could not be read."""

    reason: str
    hint: str = ""
    is_final: bool = True
    """Whether the same file would fail again."""


class Stuck(msgspec.Struct, frozen=True, tag=True):
    """The store could not be written: no other file would fare better."""

    reason: str
    hint: str = ""


Outcome = Made | Known | Failed | Stuck


class _StoreError(Exception):
    """The store cannot be written."""


def ingest_file(task: Task) -> Outcome:
    """What becomes of a file; raises nothing."""
    try:
        with _local_copy(task.source) as file:
            return _ingested(task, file)
    except Exception as error:  # one trace that meets a defect must not end the ingest of all others
        return _outcome_of(error, task.store)


def _outcome_of(error: Exception, store: str) -> Outcome:
    """What an error means: for the file, or for all of them."""
    match error:
        case _StoreError(__cause__=TraceqlError(message=message, hint=hint)):
            found = Stuck(message, hint)
        case _StoreError():
            found = Stuck(f"{store} cannot be written: {getattr(error.__cause__, 'strerror', None) or error.__cause__}")
        case TraceqlError():  # not an InputError: a decoding process died, an object store did not answer
            found = Failed(error.message, error.hint, is_final=isinstance(error, InputError))
        case MemoryError():
            found = Failed("there was not enough memory", "Use fewer --jobs or a larger machine.", is_final=False)
        case OSError():
            found = Failed(error.strerror or str(error), is_final=False)
        case _:
            found = Failed(f"{type(error).__name__}: {str(error)[:300]}", "This is a defect of traceql.")
    return found


@contextmanager
def _local_copy(source: Source) -> Generator[Path]:
    """The file itself, or a copy of the object for as long as it is needed."""
    if source.raw_path:
        yield Path(os.fsdecode(source.raw_path))
        return
    with tempfile.TemporaryDirectory(prefix="traceql-") as folder:
        target = Path(folder) / source.name
        remote_at(source.folder).download(source.name, target)
        yield target


def _ingested(task: Task, file: Path) -> Outcome:
    source = task.source
    try:
        digest = sha256(file)
    except FileNotFoundError as error:
        raise InputError(f"{file} does not exist", "Check the path; on a cluster all nodes must see it.") from error
    with _writing():
        storage = storage_at(task.store)
        entry = Store(storage).entry(digest)
    if entry and task.is_met_by(entry):
        return Known(entry)
    trace = load(
        file,
        cache=False,
        strict=task.recipe.strict,
        categories=Path(task.categories) if task.categories else None,
        n_workers=task.n_decoders,
    )
    if any(quirk.id == "merged-ranks" for quirk in trace.quirks):
        raise InputError(f"{source.name} holds several ranks itself", "Give the files it was merged from.")
    if source.raw_path and origin_of(file) != source.origin:
        return Failed("it changed while it was read", "Ingest it when it is written whole.", is_final=False)
    capture = capture_of(file) if source.raw_path else None
    folder, manifest = capture or (None, None)
    place = placed(source, trace.meta, folder, task.run)
    frames, absent = frames_of(
        trace,
        task.tables,
        control=pace_of(manifest) if manifest else None,
        engine_version=manifest.server.version if manifest else None,
    )
    date = recorded_at(trace.meta) or (datetime.fromisoformat(manifest.created) if manifest else None)
    metadata = {"source_sha256": digest, **_as_text(task.recipe)}
    with _writing():
        tables = {
            name: _put(storage, data_path(name, place.run, place.rank, digest, task.recipe), frame, metadata)
            for name, frame in frames.items()
        }
    made = Entry(
        digest=digest,
        origin=source.origin,
        run=place.run,
        rank=place.rank,
        asked_run=task.run,
        recipe=task.recipe,
        facts=Facts(date=date, host=host_of(source.name), model=manifest.server.model if manifest else None),
        tables=tables,
        absent=absent,
        ingested=datetime.now(UTC),
    )
    return Made(made)


@contextmanager
def _writing() -> Generator[None]:
    try:
        yield
    except (OSError, TraceqlError) as error:
        raise _StoreError from error


def _put(storage: Storage, path: str, frame: pl.DataFrame, metadata: Mapping[str, str]) -> DataFile:
    """Writes the rows of one table; no rows, no file."""
    if frame.is_empty():
        return DataFile(n_rows=0)
    data = parquet(frame, metadata)
    storage.write(path, data)
    return DataFile(n_rows=frame.height, path=path, n_bytes=len(data))


def _as_text(recipe: Recipe) -> dict[str, str]:
    """The recipe as Parquet's metadata has it."""
    return {f"traceql_{name}": str(value) for name, value in msgspec.to_builtins(recipe).items()}


def parquet(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """The frame as a Parquet file: the same rows and metadata are the same bytes."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", metadata=dict(metadata))
    return buffer.getvalue()


def main() -> None:
    """A worker process: a task a line on standard input, its outcome a line on standard output."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    try:
        for line in sys.stdin.buffer:
            answers.write(msgspec.json.encode(ingest_file(msgspec.json.decode(line, type=Task))) + b"\n")
            answers.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(1)
