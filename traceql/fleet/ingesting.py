"""An ingest: which files are new, what became of each, and what of it goes into the store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from traceql.capture.manifest import sha256
from traceql.errors import InputError, OutputError
from traceql.fleet.kept import known, wanted
from traceql.fleet.manifest import Entry, Failure, Recipe, checked_labels, failure_path
from traceql.fleet.placing import checked_pattern
from traceql.fleet.source import Source
from traceql.fleet.sources import still_there
from traceql.fleet.store import Store, unwritable
from traceql.fleet.task import Failed, Known, Made, Outcome, Stuck, Task

Progress = Callable[[int, int | None], None]
Engine = Callable[[Sequence[Task]], Iterator[tuple[Task, Outcome]]]
"""Runs tasks; each with its outcome, as they end."""
_FACTS = ("date", "host", "commit", "model")


@dataclass(frozen=True)
class Options:
    """How files are ingested."""

    more_tables: tuple[str, ...] = ()
    """Tables to keep beside the usual ones."""
    run: str | None = None
    """The name of their run; `{path}`, `{name}` and `{folder}` in it as `traceql.fleet.placing.placed` has them."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    strict: bool = False
    categories: Path | None = None


@dataclass
class Report:
    """What an ingest did."""

    n_files: int = 0
    n_known: int = 0
    """In the store already, as they are."""
    n_relabelled: int = 0
    n_removed: int = 0
    """Remains of killed processes."""
    ingested: list[Entry] = field(default_factory=list[Entry])
    replaced: list[Entry] = field(default_factory=list[Entry])
    """Of those ingested: what was there of them before was of a file since changed, or of another version."""
    copies: list[tuple[str, Entry]] = field(default_factory=list[tuple[str, Entry]])
    """Files whose content is in the store already, from another file."""
    failed: list[Failure] = field(default_factory=list[Failure])


def ingest(
    found: Sequence[Source],
    location: str | Path,
    engine: Engine,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Report:
    """Puts the traces in files into a store; what is there already is left as it is.

    Args:
        found: the files.
        location: folder or URL of the store, made if it is not there.
        engine: runs the tasks.
        options: what is kept, and under which names.
        progress: called with the bytes of the files done, and of all.

    Raises:
        InputError: the store is of a newer version; a run or label has a name that cannot be; a category file cannot
            be read.
        OutputError: the store cannot be written. What was committed before stays.
        QueryError: a table to keep is not known.
    """
    options = options or Options()
    tables = wanted(options.more_tables)
    recipe = Recipe(categories=_digest_of(options.categories), strict=options.strict)
    _check_names(options)
    store = Store.create(location)
    try:
        with store.at_work() as n_removed:
            work = _Ingest(store, options, Report(len(found), n_removed=n_removed))
            tasks = [
                task for source in found
                if not work.is_known(task := _task(source, store, recipe, tables, options))
            ]  # fmt: skip
            work.run(tasks, engine, progress, sum(source.origin.n_bytes for source in found))
            return work.report
    except OSError as error:
        raise unwritable(store.storage, error) from error


def _check_names(options: Options) -> None:
    taken = {column.name for table in known().values() for column in table} - set(_FACTS) | {"run", "rank"}
    checked_labels(dict(options.labels), taken)
    if options.run is not None:
        checked_pattern(options.run)


def _digest_of(categories: Path | None) -> str:
    if categories is None:
        return ""
    try:
        return sha256(categories)
    except OSError as error:
        raise InputError(f"{categories} cannot be read: {error.strerror}", "Check the path.") from error


def _task(source: Source, store: Store, recipe: Recipe, tables: tuple[str, ...], options: Options) -> Task:
    categories = str(options.categories.absolute()) if options.categories else None
    return Task(
        source=source,
        store=store.absolute,
        recipe=recipe,
        tables=tables,
        run=options.run,
        base=store.neighbourhood,
        categories=categories,
    )


class _Ingest:
    """The state of an ingest: what is in the store, and the report so far."""

    def __init__(self, store: Store, options: Options, report: Report) -> None:
        self._store = store
        self._options = options
        self.report = report
        self._of_slot = {entry.slot: entry for entry in store.entries}
        self._of_file = {entry.origin.location: entry for entry in store.entries}
        self._of_content = {entry.digest: entry for entry in store.entries}
        self._failures = {failure.origin.location: failure for failure in store.failures()}

    def is_known(self, task: Task) -> bool:
        """Whether a file is in the store, by what can be told without opening it."""
        entry = self._of_file.get(task.source.origin.location)
        if entry is None or entry.origin != task.source.origin or not task.is_met_by(entry):
            return False
        self._keep(entry, entry)
        return True

    def run(self, tasks: Sequence[Task], engine: Engine, progress: Progress | None, n_bytes: int) -> None:
        """Runs the tasks, and puts what they made into the store one by one."""
        done = n_bytes - sum(task.source.origin.n_bytes for task in tasks)
        if not tasks:
            return
        if progress:
            progress(done, n_bytes)
        for task, outcome in engine(tasks):
            self._take(task, outcome)
            done += task.source.origin.n_bytes
            if progress:
                progress(done, n_bytes)

    def _take(self, task: Task, outcome: Outcome) -> None:
        match outcome:
            case Made(entry):
                self._made(task, entry)
            case Known(entry, has_moved):
                self._was_there(task, entry, has_moved=has_moved)
            case Failed(reason, hint):
                self._failed(task, reason, hint)
            case Stuck(reason, hint):
                raise OutputError(reason, hint or "What is committed stays; mend it and ingest again to go on.")

    def _made(self, task: Task, entry: Entry) -> None:
        location = entry.origin.location
        same = self._of_content.get(entry.digest)
        if same and same.origin.location != location and task.is_met_by(same) and still_there(same.origin):
            self._was_there(task, same)
            return
        holder = self._of_slot.get(entry.slot)
        if holder and holder.digest != entry.digest and not _is_successor(entry, holder):
            self._failed(
                task,
                f"run {entry.run} has a rank {entry.rank} already, of {holder.origin.location}",
                "Ingest one of them, or give it a run of its own with --run NAME.",
            )
            return
        before = self._of_file.get(location)
        replaces = tuple({old.digest for old in (before, holder) if old and old.digest != entry.digest})
        labels = {**(same.labels if same else {}), **self._options.labels}  # of another content they would be wrong
        entry = structs.replace(entry, labels=labels, replaces=replaces, ingested=datetime.now(UTC))
        entry = self._store.commit(entry)
        self.report.ingested.append(entry)
        if old := before or same or holder:
            self.report.replaced.append(old)
        for gone in (before, holder, same):
            self._forget(gone)
        self._remember(entry)

    def _was_there(self, task: Task, entry: Entry, *, has_moved: bool = False) -> None:
        """The content is in the store: of this file, which was only touched or moved, or of another one."""
        if has_moved or entry.origin.location == task.source.origin.location:
            self._keep(entry, structs.replace(entry, origin=task.source.origin))
            return
        self.report.copies.append((task.source.origin.location, entry))
        self._keep(entry, entry)
        self._settle(task.source.origin.location)

    def _keep(self, before: Entry, entry: Entry) -> None:
        """Leaves an entry as it is, but for labels and the state of its file."""
        self.report.n_known += 1
        entry = structs.replace(entry, labels={**entry.labels, **self._options.labels})
        self.report.n_relabelled += entry.labels != before.labels
        if entry != before:
            self._store.update(entry)
            self._remember(entry)
        self._settle(entry.origin.location)

    def _settle(self, location: str) -> None:
        """A file that failed before has not now."""
        if location in self._failures:
            self._store.storage.remove(failure_path(location))

    def _failed(self, task: Task, reason: str, hint: str) -> None:
        before = self._failures.get(task.source.origin.location)
        failure = Failure(
            origin=task.source.origin,
            reason=reason,
            hint=hint,
            n_tries=before.n_tries + 1 if before else 1,
            failed=datetime.now(UTC),
        )
        self._store.note_failure(failure)
        self.report.failed.append(failure)

    def _remember(self, entry: Entry) -> None:
        self._of_slot[entry.slot] = self._of_file[entry.origin.location] = self._of_content[entry.digest] = entry

    def _forget(self, entry: Entry | None) -> None:
        if entry:
            self._of_slot.pop(entry.slot, None)
            self._of_file.pop(entry.origin.location, None)
            self._of_content.pop(entry.digest, None)


def _is_successor(entry: Entry, holder: Entry) -> bool:
    """Whether a trace takes the place of one of the same run and rank: of the same file, or of one since replaced."""
    here, there = entry.origin.location, holder.origin.location
    return here == there or (here.rpartition("/")[0] == there.rpartition("/")[0] and not still_there(holder.origin))
