"""Which rank of a job a trace file is of: what it records, what its name tells, and what to make of both."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from traceql.errors import InputError
from traceql.ingest.quirks import KINDS, Quirk

RANKS = range(1 << 15)
"""Ranks that there can be: as many as a column of them holds. Any other number is none."""
RankSource = Literal["distributed_info", "file_name", "order"]

_RANK_IN_NAME = {
    "rank": re.compile(r"(?i)(?<![a-z0-9])rank[-_.]?(\d+)(?!\d)"),
    "TP": re.compile(r"(?<![A-Za-z0-9])TP-?(\d+)(?!\d)"),
    "worker": re.compile(r"(?i)(?<![a-z])worker[-_.]?(\d+)(?!\d)"),
    "DP": re.compile(r"(?<![A-Za-z0-9])DP-?(\d+)(?!\d)"),
    "PP": re.compile(r"(?<![A-Za-z0-9])PP-?(\d+)(?!\d)"),
    "EP": re.compile(r"(?<![A-Za-z0-9])EP-?(\d+)(?!\d)"),
}
_PLACE_ORDER = ("DP", "PP", "TP", "EP")
"""Ranks that only a combination of these tells apart (TP-0-DP-1) are counted in this order."""


class FoundRanks(NamedTuple):
    """The rank of each file, all different, and what is odd about them."""

    ranks: list[int]
    notes: list[Quirk]


def found_ranks(
    names: Sequence[str], recorded: Sequence[int | None], world_sizes: Sequence[int | None], *, force: bool = False
) -> FoundRanks:
    """The ranks of the files of a run: recorded, else from the names of the files, else the free ones in order.

    Args:
        names: the files, in the order in which those without a rank are numbered.
        recorded: rank in each file's `distributedInfo`.
        world_sizes: number of ranks there.
        force: number all files by rank and name where several are of one rank.

    Where recorded ranks are the same in several files but the names tell them apart (replicas that each count from
    0), the names decide.

    Raises:
        InputError: several files are of one rank, and `force` is not set.
    """
    named = ranks_in_names(names)
    told = [name if known is None else known for known, name in zip(recorded, named, strict=True)]
    conflicts: list[Quirk] = []
    if _is_distinct(told):
        ranks, conflicts = _filled(told), _conflicts(names, recorded)
    elif None not in named and _is_distinct(named):
        ranks = [rank for rank in named if rank is not None]
    elif force:
        return FoundRanks(_numbered(told), [note("ranks-numbered", len(names))])
    else:
        raise _files_of_one_rank(names, told)
    sources: list[RankSource] = [_source(*each) for each in zip(ranks, recorded, named, strict=True)]
    return FoundRanks(ranks, [*conflicts, *_notes(ranks, sources, world_sizes)])


def ranks_in_names(names: Sequence[str]) -> list[int | None]:
    """The rank that each name tells: rank_3, TP-0, worker2, DP-1...

    It is the number of the first of these kinds that all names have and in which all differ. Where only a combination
    differs (TP-0-DP-1), ranks are counted from 0 in order of DP, PP, TP, EP. Where nothing does, each name has the
    number of the first kind in it, or none.
    """
    places = [_place(name) for name in names]
    for kind in _RANK_IN_NAME:
        numbers = [place.get(kind) for place in places]
        if None not in numbers and len(set(numbers)) == len(numbers):
            return numbers
    keys = [tuple(place.get(kind, -1) for kind in _PLACE_ORDER) for place in places]
    if all(places) and len(set(keys)) == len(keys):
        rank_of_key = {key: rank for rank, key in enumerate(sorted(keys))}
        return [rank_of_key[key] for key in keys]
    return [next(iter(place.values()), None) for place in places]


def without_rank(name: str) -> str:
    """The name without what tells its rank, and without the signs that were around that: what a run's files share."""
    for pattern in _RANK_IN_NAME.values():
        name = pattern.sub("", name)
    return re.sub(r"([-_.])[-_.]+", r"\1", name).strip("-_.")


def _place(name: str) -> dict[str, int]:
    found = {kind: pattern.search(name) for kind, pattern in _RANK_IN_NAME.items()}
    told = {kind: rank_of(match[1]) for kind, match in found.items() if match}
    return {kind: rank for kind, rank in told.items() if rank is not None}


def rank_of(digits: str) -> int | None:
    """The rank that digits tell; None where there can be no such one."""
    return rank if len(digits) < 20 and (rank := int(digits)) in RANKS else None


def _filled(ranks: Sequence[int | None]) -> list[int]:
    """The ranks, with the least free ones for those that are not known."""
    free = iter(sorted(set(range(len(ranks))) - set(ranks)))
    return [next(free) if rank is None else rank for rank in ranks]


def _numbered(ranks: Sequence[int | None]) -> list[int]:
    """Numbers from 0 in order of rank, unknown ones last, equal ones as they stand."""
    in_order = sorted(range(len(ranks)), key=lambda i: (ranks[i] is None, ranks[i] or 0, i))
    return [in_order.index(i) for i in range(len(ranks))]


def _is_distinct(ranks: Iterable[int | None]) -> bool:
    return max(Counter(rank for rank in ranks if rank is not None).values(), default=0) <= 1


def _conflicts(names: Sequence[str], recorded: Sequence[int | None]) -> list[Quirk]:
    """Files whose name tells another rank than they record; DP and PP in a name make its TP no rank."""
    faults: list[str] = []
    for name, known in zip(names, recorded, strict=True):
        place = _place(name)
        told = next(iter(place.values()), None)
        if None not in (known, told) and known != told and not {"DP", "PP"} & place.keys():
            faults.append(f"{name} (rank {known})")
    return [note("rank-conflict", len(faults), f" {listed(faults)}.")] if faults else []


def _files_of_one_rank(names: Sequence[str], ranks: Sequence[int | None]) -> InputError:
    by_rank = {rank: [n for n, r in zip(names, ranks, strict=True) if r == rank] for rank in ranks if rank is not None}
    twice = [f"rank {rank}: {listed(files)}" for rank, files in sorted(by_rank.items()) if len(files) > 1]
    return InputError(
        f"several files of one rank: {'; '.join(twice)}",
        "A run has one file of each rank: name those of one recording. With --force they are numbered instead.",
    )


def _source(rank: int, recorded: int | None, named: int | None) -> RankSource:
    return "distributed_info" if rank == recorded else "file_name" if rank == named else "order"


def _notes(ranks: Sequence[int], sources: Sequence[RankSource], world_sizes: Sequence[int | None]) -> list[Quirk]:
    """How the ranks were known where they are not recorded, and which are missing."""
    counts = Counter(sources)
    kinds: dict[RankSource, str] = {"file_name": "rank-by-name", "order": "rank-by-order"}
    notes = [note(kind, counts[source]) for source, kind in kinds.items() if counts[source]]
    missing = missing_ranks(world_sizes, ranks)
    if missing and not counts["order"]:
        notes.append(note("missing-rank", len(missing), f" {in_words(missing)}."))
    return notes


def missing_ranks(world_sizes: Iterable[int | None], ranks: Iterable[int]) -> list[int]:
    """Ranks of the job that have no file: below its recorded size, or else below the greatest rank there is."""
    have = set(ranks)
    size = max((size for size in world_sizes if size is not None), default=max(have, default=-1) + 1)
    return sorted(set(range(size)) - have)


def in_words(numbers: Iterable[int]) -> str:
    """Numbers with the runs among them shortened: `0 to 3, 5, 7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(", ".join(map(str, run)) if len(run) < 3 else f"{run[0]} to {run[-1]}" for run in runs)


def note(kind_id: str, count: int, details: str = "") -> Quirk:
    """A quirk of a run, with what it is about after its text."""
    kind = KINDS[kind_id]
    return Quirk(kind.id, kind.effect, count, kind.text + details)


def listed(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
