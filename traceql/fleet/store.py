"""A store: the tables of many traces as Parquet below `TABLE/run=…/rank=…/`, and an entry for each trace.

What has no entry is not there. So a process may be killed at any time: the entry comes last, in one step, and files
that nobody speaks of are removed by the next ingest that is alone.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import polars as pl
from msgspec import structs

from traceql.errors import InputError, OutputError
from traceql.fleet.manifest import (
    DATA_FILE,
    ENTRIES,
    FAILURES,
    FORMAT_VERSION,
    LOCK,
    MARK,
    NOTES,
    DataFile,
    Entry,
    Failure,
    Mark,
    date_of,
    entry_path,
    failure_path,
)
from traceql.fleet.source import as_text
from traceql.fleet.storage import UNFINISHED, LocalStorage, Storage, is_remote, place, storage_at

if TYPE_CHECKING:
    from collections.abc import Generator

_AT_ONCE = 32
"""Requests to an object store at a time."""
_ABANDONED = timedelta(hours=24)
"""After this time a file without an entry is taken for a killed process's, where there are no locks."""
_FACTS = pl.Schema(
    {
        "date": pl.Datetime("us", "UTC"), "host": pl.String, "commit": pl.String, "model": pl.String,
    }
)  # fmt: skip
"""What is known of each trace, beside labels."""

Note = TypeVar("Note", Entry, Failure)


class Store:
    """The traces in a store, as they were when it was opened."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._entries: list[Entry] | None = None

    @classmethod
    def open(cls, location: str | Path) -> "Store":
        """The store at a folder or URL.

        Raises:
            InputError: there is none, or a newer version of traceql made it.
        """
        storage = storage_at(location)
        mark = storage.read(MARK)
        if mark is None:
            raise InputError(f"{storage.location} is no store", "Make one with `traceql ingest TRACES --to STORE`.")
        _check_version(storage, mark)
        return cls(storage)

    @classmethod
    def create(cls, location: str | Path) -> "Store":
        """The store at a folder or URL; made now if there is none.

        Raises:
            OutputError: it cannot be written, or the folder is full of something else.
        """
        storage = storage_at(location)
        try:
            _refuse_place(storage)
            with storage.lock(LOCK, exclusive=False):  # else what is being written could be cleaned by another ingest
                mark = storage.read(MARK)
                if mark is None:
                    storage.create(MARK, msgspec.json.encode(Mark()))
                else:
                    _check_version(storage, mark)
        except OSError as error:
            raise unwritable(storage, error) from error
        return cls(storage)

    @property
    def absolute(self) -> str:
        """Its folder or URL, whatever the working folder is."""
        return str(Path(self.storage.location).absolute()) if self.storage.has_locks else self.storage.location

    @property
    def neighbourhood(self) -> str:
        """The folder or URL that it is in, without links."""
        if not self.storage.has_locks:
            return self.storage.location.rpartition("/")[0]
        return as_text(Path(os.path.realpath(self.storage.location)).parent)

    # --- what is in it ---

    @property
    def entries(self) -> list[Entry]:
        """The traces in it, by run and rank, each once."""
        if self._entries is None:
            self._entries = _current(self._notes(ENTRIES, Entry))
        return self._entries

    def failures(self) -> list[Failure]:
        """The files that could not be read when they were last tried, by name."""
        return sorted(self._notes(FAILURES, Failure), key=lambda failure: failure.origin.location)

    def entry(self, digest: str) -> Entry | None:
        """The entry of a content as it is now; None where there is none that can be read."""
        return _decoded(self.storage.read(entry_path(digest)), Entry)

    def labels(self) -> list[str]:
        """The names of all labels that a trace in it has, sorted."""
        return sorted({name for entry in self.entries for name in entry.all_labels} - set(_FACTS))

    def identities(self) -> pl.DataFrame:
        """One row for each trace: run, rank, date, host, commit, model and the labels. A label goes before a fact."""
        labels = self.labels()
        rows = [_identity(entry, labels) for entry in self.entries]
        schema = {"run": pl.String, "rank": pl.Int16, **_FACTS, **dict.fromkeys(labels, pl.String)}
        return pl.DataFrame(rows, schema=schema)

    def scan(self, table: str, schema: pl.Schema) -> pl.LazyFrame:
        """The rows of a table, of all traces; with the columns of `identities` in front.

        Args:
            table: its name.
            schema: its columns without `rank`; those that an older version did not write are null.

        Raises:
            InputError: the store lies where Parquet datasets cannot.
        """
        _refuse_place(self.storage)
        files = [file.path for entry in self.entries if (file := entry.tables.get(table)) and file.path]
        if not files:
            return pl.LazyFrame(schema=pl.Schema({**self.identities().schema, **schema}))
        rows = pl.scan_parquet(
            [self.storage.url(path) for path in files],
            hive_partitioning=True,
            hive_schema={"run": pl.String, "rank": pl.Int16},
            schema=schema,
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
        )
        found = self.identities().lazy()
        rows = rows.join(found, on=["run", "rank"], how="left", maintain_order="left")
        return rows.select(*found.collect_schema().names(), *schema)

    def tables(self) -> dict[str, DataFile]:
        """Rows and bytes of each table that a trace was asked for, over all traces."""
        sums: dict[str, DataFile] = {}
        for entry in self.entries:
            for name, file in entry.tables.items():
                known = sums.get(name, DataFile(n_rows=0))
                sums[name] = DataFile(n_rows=known.n_rows + file.n_rows, n_bytes=known.n_bytes + file.n_bytes)
        return dict(sorted(sums.items()))

    def damage(self, error: Exception) -> InputError:
        """The error that a committed data file cannot be read."""
        hint = "A data file is missing or damaged; remove its entry in _traceql/entries and ingest the trace again."
        if isinstance(error, PermissionError):
            hint = "Check its permissions."
        return InputError(f"{self.storage.location}: {' '.join(str(error).split())[:300]}", hint)

    def _notes(self, below: str, kind: type[Note]) -> list[Note]:
        paths = sorted(file.path for file in self.storage.files(below) if file.path.endswith(".json"))
        if is_remote(self.storage.location):
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                found = list(pool.map(self.storage.read, paths))
        else:
            found = [self.storage.read(path) for path in paths]
        return [note for data in found if (note := _decoded(data, kind))]

    # --- changing it ---

    def commit(self, entry: Entry) -> Entry:
        """Puts a trace into the store, in one step, with its data files already there; what is there then.

        Another process may have put the same content there meanwhile: it is in the store once all the same.
        """
        data = msgspec.json.encode(entry)
        if not self.storage.create(entry.path, data):
            there = self.entry(entry.digest)
            if there and there.is_as(entry):
                if there.all_labels == entry.all_labels:
                    return there
                entry = structs.replace(entry, labels=there.labels | entry.labels)
            self.storage.write(entry.path, data)
        for digest in entry.replaces:
            self.storage.remove(entry_path(digest))
        self.storage.remove(failure_path(entry.origin.location))
        self._entries = None
        return entry

    def update(self, entry: Entry) -> None:
        """Writes an entry anew, of the same data files."""
        self.storage.write(entry.path, msgspec.json.encode(entry))
        self._entries = None

    def note_failure(self, failure: Failure) -> None:
        """Remembers that a file could not be read."""
        self.storage.write(failure.path, msgspec.json.encode(failure))

    @contextmanager
    def at_work(self) -> "Generator[int]":
        """While files are ingested: nobody cleans meanwhile. Cleans first if nobody else is at work.

        Its value is the number of files removed.
        """
        with self.storage.lock(LOCK, exclusive=True) as is_alone:
            n_removed = self._clean(is_alone=is_alone)
        with self.storage.lock(LOCK, exclusive=False):
            yield n_removed

    def _clean(self, *, is_alone: bool) -> int:
        if not is_alone and self.storage.has_locks:
            return 0
        every = list(self._notes(ENTRIES, Entry))
        current = _current(every)
        kept = {file.path for entry in current for file in entry.tables.values()} | {entry.path for entry in current}
        shadowed = [entry.path for entry in every if entry.path not in kept]
        cutoff = datetime.now(UTC) - (timedelta(0) if is_alone else _ABANDONED)
        orphans = [
            file.path for file in self.storage.files()
            if file.path not in kept and file.modified < cutoff and _is_ours(file.path)
        ]  # fmt: skip
        for path in (*shadowed, *orphans):
            self.storage.remove(path)
        return len(shadowed) + len(orphans)


def is_store(location: str | Path) -> bool:
    """Whether there is a store at a folder or URL."""
    if is_remote(location):
        return storage_at(place(location)).read(MARK) is not None
    return os.path.isfile(Path(place(location)) / MARK)  # noqa: PTH113 - a Path's raises where nobody may look


def unwritable(storage: Storage, error: OSError) -> OutputError:
    """The error that a store cannot be written."""
    return OutputError(
        f"{storage.location} cannot be written: {error.strerror or error}",
        "What is committed stays; make room or check permissions, and ingest again to go on.",
    )


def _is_ours(path: str) -> bool:
    """Whether a file that no entry names may be removed: a data file, or one that was being written."""
    return DATA_FILE.fullmatch(path) is not None or path.endswith(UNFINISHED)


def _refuse_place(storage: Storage) -> None:
    """Raises where a folder above would be taken for a partition, or holds other things.

    Raises:
        InputError: a folder above is named `name=value`.
        OutputError: it is a file, or a folder of other things.
    """
    above = str(Path(storage.location).absolute()) if isinstance(storage, LocalStorage) else storage.location
    if "=" in above:
        raise InputError(
            f"{storage.location}: a folder named `name=value` would be a column of all tables", "Choose another place."
        )
    if not isinstance(storage, LocalStorage):
        return
    folder = Path(storage.location)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file", "Name a folder for the store.")
    if folder.is_dir() and not (folder / MARK).is_file() and any(item.name != NOTES for item in folder.iterdir()):
        raise OutputError(f"{folder} holds other files", "Name a new folder for the store, or an empty one.")


def _check_version(storage: Storage, mark: bytes) -> None:
    try:
        version = msgspec.json.decode(mark, type=Mark).traceql_store
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{storage.location} is damaged: {MARK} cannot be read", "Ingest into a new one.") from error
    if version > FORMAT_VERSION:
        known = f"this traceql knows {FORMAT_VERSION}"
        raise InputError(f"{storage.location} is a store of format {version}; {known}", "Update traceql.")


def _decoded(data: bytes | None, kind: type[Note]) -> Note | None:
    """The note; None where there is none, or a foreign or newer one."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _current(entries: Iterable[Entry]) -> list[Entry]:
    """Those that count: not replaced, and of one run and rank the first to come."""
    every = list(entries)
    replaced: dict[str, datetime] = {}
    for entry in every:
        for digest in entry.replaces:
            replaced[digest] = max(entry.ingested, replaced.get(digest, entry.ingested))
    found: dict[tuple[str, int], Entry] = {}
    for entry in sorted(every, key=lambda entry: (entry.ingested, entry.digest)):
        if entry.digest not in replaced or entry.ingested > replaced[entry.digest]:  # it came back since
            found.setdefault(entry.slot, entry)
    return [found[slot] for slot in sorted(found)]


def _identity(entry: Entry, labels: Iterable[str]) -> dict[str, object]:
    """A row of the columns that all tables have in front."""
    found = entry.all_labels
    return {"run": entry.run, "rank": entry.rank, **{name: found.get(name) for name in labels}, **_told(entry)}


def _told(entry: Entry) -> dict[str, object]:
    """The facts, or what a label says instead."""
    said: dict[str, object] = {name: entry.labels.get(name) or getattr(entry.facts, name) for name in _FACTS}
    date = said["date"]
    return said | {"date": date_of(date) if isinstance(date, str) else date}
