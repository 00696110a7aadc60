"""The oddities a trace file can have: what was repaired, what was lost, what is worth knowing.

Each kind is named once, here, with its explanation and advice; readers count the occurrences.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

Effect = Literal["repaired", "lost", "note"]


class QuirkKind(msgspec.Struct, frozen=True):
    """A kind of oddity: what was done about it and what it means for the figures."""

    id: str
    effect: Effect
    text: str


class Quirk(msgspec.Struct, frozen=True):
    """How often a kind of oddity was met in one trace."""

    id: str
    effect: Effect
    count: int
    text: str


KINDS: dict[str, QuirkKind] = {
    kind.id: kind
    for kind in (
        QuirkKind("truncated", "lost", "The file ends in the middle: everything after the cut is missing."),
        QuirkKind("broken-event", "lost", "Events that are not JSON and could not be repaired were skipped."),
        QuirkKind(
            "illegal-escape",
            "repaired",
            "Stretches of the file with backslashes that JSON does not allow (Windows paths); read literally.",
        ),
        QuirkKind(
            "control-character",
            "repaired",
            "Stretches with raw control characters in strings; they were escaped.",
        ),
        QuirkKind("non-utf8", "repaired", "Stretches with bytes that are not UTF-8; shown as �."),
        QuirkKind(
            "non-finite-number",
            "repaired",
            "Stretches with inf or nan, which JSON does not know; read as unknown.",
        ),
        QuirkKind("stray-comma", "repaired", "Commas without an event before or after them were ignored."),
        QuirkKind("missing-comma", "repaired", "Commas missing between events were put in."),
        QuirkKind(
            "odd-arguments",
            "repaired",
            "Events whose arguments have unexpected types; what could be read of them was kept.",
        ),
        QuirkKind(
            "impossible-duration",
            "lost",
            "Events that claim to last longer than 30 days; left out of every figure.",
        ),
        QuirkKind("negative-duration", "lost", "Events that end before they begin; left out of every figure."),
        QuirkKind("unreadable-time", "lost", "Events without a time that can be read; left out."),
        QuirkKind(
            "untimed",
            "note",
            "GPU activities with ts 0 and dur 0 were never timed; counted, but without a place in time.",
        ),
        QuirkKind(
            "python-frame-overrun",
            "repaired",
            "Python frames that outlast their caller (their return was not seen) were cut at its end.",
        ),
        QuirkKind(
            "unclosed-span",
            "lost",
            "Begin events without an end (or the reverse) have no duration; left out.",
        ),
        QuirkKind(
            "no-launch",
            "note",
            "GPU activities whose launch is not in the trace: they belong to no step and no op.",
        ),
        QuirkKind("zero-correlation", "note", "GPU activities with correlation 0, which means unknown."),
        QuirkKind(
            "ambiguous-correlation",
            "note",
            "Correlation ids shared by several host calls; the one that launches work was taken.",
        ),
        QuirkKind("merged-ranks", "note", "The file holds several ranks; ids are matched within each."),
        QuirkKind(
            "no-kernels",
            "note",
            "Launches were recorded, but no GPU activity: GPU time is unknown, not zero.",
        ),
        QuirkKind("unknown-category", "note", "Events of categories that traceql does not use."),
        QuirkKind("not-a-gpu", "note", "Device events of an accelerator that is not a GPU; not analysed."),
        QuirkKind("duplicate-step", "note", "Steps of one number that appear more than once."),
        QuirkKind(
            "rank-conflict",
            "note",
            "Files whose name tells another rank than their distributedInfo, which was believed:",
        ),
        QuirkKind(
            "rank-by-name",
            "note",
            "Files whose rank is from their name, since distributedInfo tells none, or the same one for several.",
        ),
        QuirkKind(
            "rank-by-order",
            "note",
            "Files that tell no rank, neither recorded nor in their name; numbered in order of the names.",
        ),
        QuirkKind(
            "ranks-numbered",
            "note",
            "Several files are of one rank (--force): all files are numbered anew, by rank and name.",
        ),
        QuirkKind("missing-rank", "note", "Ranks of the job without a file:"),
        QuirkKind("mixed-jobs", "note", "The files look like those of different jobs (--force):"),
        QuirkKind(
            "other-times",
            "note",
            "Ranks recorded when the first was not: they are of another recording, or their clocks are apart, "
            "and what is compared across ranks means nothing:",
        ),
        QuirkKind(
            "no-common-clock",
            "note",
            "Files of a run that do not all tell their absolute time: each begins at zero, so times of two ranks "
            "cannot be compared.",
        ),
        QuirkKind("not-a-trace", "note", "Files beside the traces that are none were left out:"),
    )
}


class QuirkCounter:
    """Counts oddities while a trace is read."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, kind_id: str, count: int = 1) -> None:
        """Counts `count` more of a kind; zero is fine and leaves no trace."""
        if count:
            self._counts[KINDS[kind_id].id] += count

    def merge(self, counts: Iterable[tuple[str, int]]) -> None:
        """Adds the counts of another reader."""
        for kind_id, count in counts:
            self.add(kind_id, count)

    def has(self, kind_id: str) -> bool:
        """Whether a kind was met."""
        return self._counts[kind_id] > 0

    def counts(self) -> list[tuple[str, int]]:
        """(kind id, count) in the order of `KINDS`."""
        return [(kind_id, self._counts[kind_id]) for kind_id in KINDS if self._counts[kind_id]]

    def quirks(self) -> tuple[Quirk, ...]:
        """The quirks met, losses first, else in the order of `KINDS`."""
        order = ("lost", "repaired", "note")
        met = [Quirk(KINDS[k].id, KINDS[k].effect, count, KINDS[k].text) for k, count in self.counts()]
        return tuple(sorted(met, key=lambda quirk: order.index(quirk.effect)))
