"""One file into a store's tables: what a worker does, wherever it runs. It commits nothing."""

import io
import os
import re
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import polars as pl

from traceql.capture.manifest import NAME as CAPTURE_NAME
from traceql.capture.manifest import Manifest, capture_of, sha256
from traceql.diffing import pace_of
from traceql.errors import InputError, TraceqlError
from traceql.fleet.kept import frames_of
from traceql.fleet.manifest import DataFile, Entry, Facts, Recipe, data_path, date_of
from traceql.fleet.placing import host_of, placed, recorded_at
from traceql.fleet.source import Source
from traceql.fleet.sources import origin_of, remote_at, still_there
from traceql.fleet.storage import Storage, storage_at
from traceql.fleet.store import Store
from traceql.ingest.meta import TraceMeta
from traceql.trace import load


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A file to ingest."""

    source: Source
    store: str
    recipe: Recipe
    tables: tuple[str, ...]
    run: str | None = None
    """The name asked for its run."""
    base: str = ""
    """Folder from which the path counts that its run is named by, where it is below that."""
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
    has_moved: bool = False
    """Whether the file that it is of is no longer there, and this one has its run and rank."""


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


_COMMIT = re.compile(r"\+(?:\w+\.)*g([0-9a-f]{7,40})\b")
"""In the version of an engine that was built from its repository: 0.5.12.dev45+g1a2b3c4."""


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
    """The file itself, or a copy of the object for as long as it is needed, with the manifests that are beside it."""
    if source.raw_path:
        yield Path(os.fsdecode(source.raw_path))
        return
    with tempfile.TemporaryDirectory(prefix="traceql-") as folder:
        above, _, name = source.folder.rpartition("/")
        here = Path(folder) / "copy" / (name if name not in ("", ".", "..") else "traces")  # as the manifest names it
        here.mkdir(parents=True)
        remote_at(source.folder).download(source.name, here / source.name)
        for at, url in ((here, source.folder), (here.parent, above)):
            with suppress(TraceqlError):  # there is none, or nobody may look
                remote_at(url).download(CAPTURE_NAME, at / CAPTURE_NAME)
        yield here / source.name


def _ingested(task: Task, file: Path) -> Outcome:
    source = task.source
    try:
        digest = sha256(file)
    except FileNotFoundError as error:
        raise InputError(f"{file} does not exist", "Check the path; on a cluster all nodes must see it.") from error
    with _writing():
        storage = storage_at(task.store)
        entry = Store(storage).entry(digest)
    if entry and task.is_met_by(entry) and (_is_of(entry, source) or still_there(entry.origin)):
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
    if source.raw_path and not origin_of(file).is_as(source.origin):
        return Failed("it changed while it was read", "Ingest it when it is written whole.", is_final=False)
    captured = capture_of(file)
    folder, manifest = captured or (None, None)
    place = placed(
        source, trace.meta, capture=folder and _named(folder, file, source), run=task.run, base=task.base
    )  # fmt: skip
    if entry and task.is_met_by(entry) and entry.slot == (place.run, place.rank):
        return Known(entry, has_moved=True)
    frames, absent = frames_of(
        trace,
        task.tables,
        control=pace_of(manifest) if manifest else None,
        engine_version=manifest.server.version if manifest else None,
    )
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
        facts=_facts(source, trace.meta, manifest),
        told=labels_told(manifest) if manifest else {},
        tables=tables,
        n_lost=sum(quirk.effect == "lost" for quirk in trace.quirks),
        absent=absent,
        ingested=datetime.now(UTC),
    )
    return Made(made)


def _is_of(entry: Entry, source: Source) -> bool:
    return entry.origin.location == source.origin.location


def _named(folder: Path, file: Path, source: Source) -> str:
    """The folder of a capture as locations are written: the one that the file is in, or the one above."""
    return source.folder if folder == file.absolute().parent else source.folder.rpartition("/")[0]


def _facts(source: Source, meta: TraceMeta, manifest: Manifest | None) -> Facts:
    """What the trace, its name and the manifest beside it tell."""
    date, host = recorded_at(meta), host_of(source.name)
    if manifest is None:
        return Facts(date=date, host=host)
    commit = _COMMIT.search(manifest.server.version)
    with suppress(InputError):
        date = date or date_of(manifest.created)
    return Facts(date=date, host=host, commit=commit[1] if commit else None, model=manifest.server.model)


def labels_told(manifest: Manifest) -> dict[str, str]:
    """What a capture's manifest tells about how its server ran, as labels; what it does not know is none."""
    server = manifest.server
    found = {
        "patches": ", ".join(patch.name for patch in manifest.patches) or "none",
        "attention_backend": server.attention_backend,
        "kv_cache_dtype": server.kv_cache_dtype,
    }
    return {name: value for name, value in found.items() if value}


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
