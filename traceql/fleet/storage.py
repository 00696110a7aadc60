"""Where a store's files are: a folder, or an object store named by a URL (with the extra `cloud`).

A file appears whole or not at all, and `create` gives a name to one writer only. More is not asked of a storage, so
that a folder and an object store can be used alike.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from traceql.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from obstore import ObjectMeta
    from obstore.store import ClientConfig, ObjectStore

UNFINISHED = ".traceql-unfinished"
"""What the names of files end with that are being written."""
_SCHEME = re.compile(r"([a-z][a-z0-9+]+):/+(.*)", re.IGNORECASE | re.DOTALL)
_HUB = "hf"
"""Of the Hugging Face Hub, which has no stores: see `traceql.fleet.hub`."""
_REMOTE = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https", _HUB)
_EXTRA = "Install it with `pip install 'traceql[cloud]'`."


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file as listed."""

    path: str
    """Relative to where it is looked for, with `/`."""
    n_bytes: int
    state: str
    """Another one whenever the content may be another: time and inode of a file, the entity tag of an object."""


@dataclass(frozen=True, kw_only=True)
class Stored(Found):
    """A file of a storage."""

    modified: datetime


class Storage(Protocol):
    """Files below one place. Paths are relative to it, with `/`."""

    location: str
    """The folder or URL."""

    def read(self, path: str) -> bytes | None:
        """The content; None where there is no such file.

        Raises:
            InputError: there is one, and it cannot be read.
        """
        ...

    def write(self, path: str, data: bytes) -> None:
        """Puts the file there, in place of what may be there, whole or not at all."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Puts the file there unless there is one; whether it did. Of several at once one does."""
        ...

    def remove(self, path: str) -> None:
        """Removes the file, if it is there."""
        ...

    def files(self, below: str = "") -> Iterator[Stored]:
        """The files below a folder, in no order; none where there is no such folder."""
        ...

    def url(self, path: str) -> str:
        """What polars reads the file by."""
        ...

    @property
    def has_locks(self) -> bool:
        """Whether `lock` excludes anybody."""
        ...

    def lock(self, path: str, *, exclusive: bool) -> AbstractContextManager[bool]:
        """A context in which the lock is held; its value tells whether it is.

        Exclusive it is had at once or not at all; shared it is waited for.
        """
        ...


def is_remote(location: str | Path) -> bool:
    """Whether it is the URL of an object store, a web server or the Hub; as a Path it has lost a slash."""
    found = _SCHEME.fullmatch(str(location))
    return found is not None and found[1].lower() in _REMOTE


def is_hub(location: str) -> bool:
    """Whether a URL is of the Hugging Face Hub."""
    return location.startswith(f"{_HUB}:")


def place(location: str | Path) -> str:
    """The location as text: a URL with both its slashes, a folder as it is."""
    found = _SCHEME.fullmatch(str(location))
    if found is None:
        return str(location)
    scheme = found[1].lower()
    if scheme == "file":
        return f"/{found[2]}"
    if scheme not in _REMOTE:
        raise InputError(f"{str(location)[:200]!r}: {scheme} is no known storage", f"Known: {', '.join(_REMOTE)}.")
    return f"{scheme}://{found[2]}".rstrip("/")


def storage_at(location: str | Path) -> Storage:
    """The storage at a folder or URL, which need not exist.

    Raises:
        InputError: the URL is of no kind that is known or can be written, or what reads it is not installed.
    """
    where = place(location)
    if is_hub(where):
        raise InputError(f"{where}: the Hugging Face Hub has no stores, only traces", "Name a folder or object store.")
    return RemoteStorage(where) if is_remote(where) else LocalStorage(Path(where))


class LocalStorage:
    """Files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.location = str(folder)
        self._folder = folder

    def read(self, path: str) -> bytes | None:
        """As `Storage`."""
        try:
            return (self._folder / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(error) from error

    def write(self, path: str, data: bytes) -> None:
        """As `Storage`."""
        with self._part(path, data) as part:
            part.replace(self._folder / path)
        self._settle(path)

    def create(self, path: str, data: bytes) -> bool:
        """As `Storage`."""
        with self._part(path, data) as part:
            try:
                os.link(part, self._folder / path)
            except FileExistsError:
                return False
        self._settle(path)
        return True

    def remove(self, path: str) -> None:
        """As `Storage`; the folder of a partition that is empty then goes too."""
        target = self._folder / path
        with suppress(OSError):
            target.unlink()
            for folder in target.parents:
                if "=" not in folder.name:
                    break
                folder.rmdir()

    def files(self, below: str = "") -> Iterator[Stored]:
        """As `Storage`."""
        for folder, _, names in os.walk(self._folder / below, onerror=_refuse_unless_gone):
            for path in (Path(folder, name) for name in names):
                with suppress(OSError):  # it has gone meanwhile
                    stat = path.stat()
                    modified = datetime.fromtimestamp(stat.st_mtime, UTC)
                    state = f"{stat.st_mtime_ns}-{stat.st_ino}"
                    name = path.relative_to(self._folder).as_posix()
                    yield Stored(path=name, n_bytes=stat.st_size, modified=modified, state=state)

    def url(self, path: str) -> str:
        """As `Storage`."""
        return str((self._folder / path).absolute())

    has_locks = True

    @contextmanager
    def lock(self, path: str, *, exclusive: bool) -> "Generator[bool]":
        """As `Storage`; also let go when the process is killed."""
        try:
            import fcntl  # noqa: PLC0415 - not on every system
        except ImportError:
            yield not exclusive
            return
        target = self._folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
            except OSError:
                yield False
                return
            yield True

    @contextmanager
    def _part(self, path: str, data: bytes) -> "Generator[Path]":
        """The content on disk under a temporary name beside its place; nothing is left of it afterwards."""
        folder = (self._folder / path).parent
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(UNFINISHED, dir=folder)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.chmod(0o644)
            yield part
        finally:
            part.unlink(missing_ok=True)

    def _settle(self, path: str) -> None:
        """Sees to it that the new name outlasts a loss of power, where the system can."""
        with suppress(OSError):
            handle = os.open((self._folder / path).parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _unreadable(error: OSError) -> InputError:
    return InputError(f"{error.filename} cannot be read: {error.strerror}", "Check its permissions, and the disk.")


def _refuse_unless_gone(error: OSError) -> None:
    """What cannot be listed must not look empty: all data would be without entries then."""
    if not isinstance(error, FileNotFoundError):
        raise _unreadable(error) from error


class RemoteStorage:
    """Objects below a URL, through obstore. Keys and regions come from the environment, as its makers document."""

    def __init__(self, location: str) -> None:
        try:
            from obstore.store import from_url  # noqa: PLC0415 - only with the extra
        except ImportError as error:
            raise InputError(f"{location} takes a library that is not installed", _EXTRA) from error
        self.location = location
        try:
            plain: ClientConfig = {"allow_http": True} if location.startswith("http:") else {}
            self._store: ObjectStore = from_url(location, client_options=plain)
        except Exception as error:
            raise InputError(f"{location}: {first_line(error)}", "Check the URL.") from error

    def read(self, path: str) -> bytes | None:
        """As `Storage`."""
        with _told(self.location):
            try:
                return bytes(self._store.get(path).bytes())
            except FileNotFoundError:
                return None

    def write(self, path: str, data: bytes) -> None:
        """As `Storage`; an object store never shows half an object."""
        with _told(self.location):
            self._store.put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """As `Storage`, by a conditional put."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        with _told(self.location):
            try:
                self._store.put(path, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def remove(self, path: str) -> None:
        """As `Storage`."""
        with _told(self.location), suppress(FileNotFoundError):
            self._store.delete(path)

    def files(self, below: str = "") -> Iterator[Stored]:
        """As `Storage`."""
        with _told(self.location):
            batches: Iterable[Sequence[ObjectMeta]] = self._store.list(below or None)  # pyright: ignore[reportUnknownMemberType] - its other form
            for batch in batches:
                yield from map(_stored, batch)

    def url(self, path: str) -> str:
        """As `Storage`."""
        return f"{self.location}/{path}"

    def download(self, path: str, target: Path) -> None:
        """Writes the object into a file, in pieces."""
        with _told(self.location), target.open("wb") as file:
            for piece in self._store.get(path).stream(min_chunk_size=16 << 20):
                file.write(piece)

    def head(self, path: str) -> Stored:
        """What a listing says about one object.

        Raises:
            InputError: there is none.
        """
        with _told(self.location):
            return replace(_stored(self._store.head(path)), path=path)

    has_locks = False

    @contextmanager
    def lock(self, path: str, *, exclusive: bool) -> "Generator[bool]":  # noqa: ARG002 - as `Storage`
        """As `Storage`: there are none, so nobody has one alone."""
        yield not exclusive


def _stored(item: "ObjectMeta") -> Stored:
    state = str(item["e_tag"] or item["version"] or item["last_modified"].isoformat())
    return Stored(path=item["path"], n_bytes=item["size"], modified=item["last_modified"], state=state)


@contextmanager
def _told(location: str) -> "Generator[None]":
    """What goes wrong with an object store, as an error that says where."""
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        yield
    except (BaseError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{location}: there is no such object", "Check the URL.") from error
        raise OutputError(
            f"{location}: {first_line(error)}", "Check the URL, and the keys and region in the environment."
        ) from error


def first_line(error: Exception) -> str:
    """What an error of a library says, as far as it fits into a message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
