"""What a store writes down: an entry for each trace that is in it, a failure for each that could not be read.

A trace is in a store when its entry is; data files without one are remains of a killed process, which no reader sees.
"""

import hashlib
import re
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

import msgspec

from traceql import __version__
from traceql.errors import InputError
from traceql.trace import FORMAT_VERSION as TRACE_FORMAT

FORMAT_VERSION = 1
"""Of stores: raised when the layout, or the meaning of a field, changes."""
NOTES = "_traceql"
"""The folder of all that is not data."""
MARK = f"{NOTES}/store.json"
ENTRIES = f"{NOTES}/entries"
FAILURES = f"{NOTES}/failures"
LOCK = f"{NOTES}/lock"
_DATA_FILE = r"^[a-z_]+/run=[^/]+/rank=\d+/[0-9a-f]{16}-[0-9a-f]{8}\.parquet$"
DATA_FILE = re.compile(_DATA_FILE)
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
"""SHA-256 of a file, in hexadecimal: which content it is."""
RUN_BYTES = 240
"""Of a run's name as a folder's, which may have 255 with `run=`."""
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""As a folder's name it is null."""
_LABEL = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a folder a store."""

    traceql_store: int = FORMAT_VERSION


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that the tables depend on besides the trace: another recipe is another content."""

    traceql: str = __version__
    store_format: int = FORMAT_VERSION
    trace_format: int = TRACE_FORMAT
    categories: str = ""
    """Hash of the file of own kernel categories; empty without."""
    strict: bool = False

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits."""
        return short_hash(msgspec.json.encode(self))[:8]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The file that a trace was read from, in the state that it had."""

    location: str
    """Absolute path or URL; bytes that are not UTF-8 are escaped."""
    n_bytes: int
    state: str
    """Time and inode, or entity tag: where both are as they were, the content is not looked at again."""

    def is_as(self, other: "Origin") -> bool:
        """Whether the content is the same as far as can be told without reading it, wherever it is."""
        return (self.n_bytes, self.state) == (other.n_bytes, other.state)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a recording beside its times; null is unknown."""

    date: datetime | None = None
    """When the recording began, UTC."""
    host: str | None = None
    commit: str | None = None
    model: str | None = None


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one table that a trace has."""

    n_rows: int
    path: Annotated[str, msgspec.Meta(pattern=_DATA_FILE)] | None = None
    """Relative to the store; null without rows."""
    n_bytes: int = 0


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that is in the store."""

    digest: Digest
    origin: Origin
    run: str
    rank: int
    asked_run: str | None = None
    """What --run said, placeholders and all."""
    recipe: Recipe
    facts: Facts = Facts()
    labels: dict[str, str] = {}
    """Given when it was ingested."""
    told: dict[str, str] = {}
    """Labels that a capture's manifest tells; what is given goes before them."""
    tables: dict[str, DataFile]
    n_lost: int = 0
    """Kinds of loss met while it was read."""
    absent: dict[str, str] = {}
    """Tables that the trace has no data for, and why."""
    replaces: tuple[Digest, ...] = ()
    """Digests of the entries that this one takes the place of."""
    ingested: datetime

    @property
    def path(self) -> str:
        """Where it is in the store."""
        return entry_path(self.digest)

    def is_as(self, other: "Entry") -> bool:
        """Whether it is of the same content and file in the same place, and has at least the tables of the other."""
        alike = (self.digest, self.slot, self.recipe) == (other.digest, other.slot, other.recipe)
        return alike and self.origin == other.origin and self.tables.keys() >= other.tables.keys()

    @property
    def all_labels(self) -> dict[str, str]:
        """Those given and those told."""
        return self.told | self.labels

    @property
    def slot(self) -> tuple[str, int]:
        """Its run and rank, of which there is one trace."""
        return self.run, self.rank


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A file that could not be read, and why."""

    origin: Origin
    reason: str
    hint: str = ""
    n_tries: int = 1
    """In all ingests, one after the other."""
    traceql: str = __version__
    failed: datetime

    @property
    def path(self) -> str:
        """Where it is in the store."""
        return failure_path(self.origin.location)


def entry_path(digest: str) -> str:
    """Where the entry of a content is."""
    return f"{ENTRIES}/{digest}.json"


def failure_path(location: str) -> str:
    """Where the failure of a file is."""
    return f"{FAILURES}/{short_hash(location.encode())}.json"


def data_path(table: str, run: str, rank: int, digest: str, recipe: Recipe) -> str:
    """Where the rows of a trace are: the same content by the same recipe is the same name."""
    return f"{table}/run={quote(run, safe='')}/rank={rank}/{digest[:16]}-{recipe.digest}.parquet"


def short_hash(data: bytes) -> str:
    """32 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:32]


def checked_run(name: str) -> str:
    """The name of a run, if it can be one.

    Raises:
        InputError: it is empty, or cannot be the name of a folder.
    """
    if not name.strip() or len(quote(name, safe="")) > RUN_BYTES or name == _HIVE_NULL:
        raise InputError(f"{name[:80]!r} cannot name a run", "Give a short name with --run NAME.")
    return name


def checked_labels(labels: dict[str, str], taken: set[str]) -> dict[str, str]:
    """The labels, if each can be a column beside those of the tables.

    Args:
        labels: by name.
        taken: names of columns that they must not have.

    Raises:
        InputError: a name is no plain word or is taken, or `date` is no date.
    """
    for name, value in labels.items():
        if not _LABEL.fullmatch(name):
            raise InputError(f"{name[:80]!r} cannot name a label", "Use small letters, digits and _, at most 40.")
        if name in taken:
            raise InputError(f"the tables have a column {name} themselves", f"Choose another name, such as my_{name}.")
        if name == "date":
            date_of(value)
    return labels


def date_of(text: str) -> datetime:
    """The moment that a label `date` names: ISO 8601; without a zone it is UTC.

    Raises:
        InputError: it names none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"{text[:80]!r} is no date", "Write 2026-01-31, or 2026-01-31T12:00:00+00:00.") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
