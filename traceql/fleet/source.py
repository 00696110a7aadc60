"""One file that is to be ingested, and what its place and name say."""

import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from traceql.fleet.manifest import Origin
from traceql.ingest.ranks import rank_of
from traceql.ingest.trace_files import stem_of

_STAMPED = re.compile(r"(?P<worker>.+)\.(?P<time>\d{10,19})\.pt\.trace\.json(\.(gz|zst|xz))?", re.DOTALL)
"""As torch.profiler.tensorboard_trace_handler names its files: worker.time.pt.trace.json."""
_RANK_FOLDER = re.compile(r"(?i)rank[-_.]?(\d+)")


class Stamp(NamedTuple):
    """What torch.profiler's handler puts into a file's name."""

    worker: str
    """What it was told, else host_pid."""
    time_ns: int
    """When the file was written, since 1970: each rank has a time of its own."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file to be ingested."""

    origin: Origin
    json_bytes: int
    """Its size as uncompressed JSON: what it says, else an estimate."""

    raw_path: bytes = b""
    """Path of a local file, as the system has it; empty for a remote one."""
    rank_in_name: int | None = None
    is_rank_told: bool = False
    """Whether only its name tells it apart from other files of the run."""
    begun_ns: int | None = None
    """The least time in the names of its recording's files; null where names have none."""

    @property
    def name(self) -> str:
        """Name of the file."""
        return PurePosixPath(self.origin.location).name

    @property
    def stem(self) -> str:
        """The name without what says that it is a trace."""
        return stem_of(self.name)

    @property
    def folder(self) -> str:
        """Where it is."""
        return self.origin.location.rpartition("/")[0]

    @property
    def job_folder(self) -> str:
        """Where the files of all ranks are: the folder above one that is for a rank."""
        return self.folder if rank_of_folder(self.folder) is None else self.folder.rpartition("/")[0]

    @property
    def name_in_job(self) -> str:
        """Its name seen from there."""
        return self.origin.location.removeprefix(f"{self.job_folder}/")


def stamp_of(name: str) -> Stamp | None:
    """What torch.profiler's handler put into a name; None in any other."""
    found = _STAMPED.fullmatch(name)
    return Stamp(found["worker"], int(found["time"].ljust(19, "0"))) if found else None


def rank_of_folder(folder: str) -> int | None:
    """The rank that a folder is for: `3` for one named rank_3; None for any other."""
    found = _RANK_FOLDER.fullmatch(folder.rpartition("/")[2])
    return rank_of(found[1]) if found else None


def as_text(path: Path) -> str:
    """A path as text that can be written down: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
