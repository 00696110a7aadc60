"""What anchors a layer in a sequence of kernels: where blocks begin (marks), and one sure kernel of each layer."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low

import numpy as np

from traceql.analyses.layer_roles import Vocabulary
from traceql.arrays import Bools, Ints

TOLERANCE = 0.35
"""By how much of a usual distance another may differ from it."""
HEAD = 3
"""Kernels at least between two passes: final norm, logits, sampling."""
_RARE = 0.3
"""Fewer feed-forward than mixer runs in this proportion: the names do not show them (or the other way round)."""
_MAX_NORM_PARTS = 5
"""Kernels before the rsqrt of a norm written out: convert, square, mean, add epsilon, and one to spare."""
_ENOUGH = 4
"""Anchors from which a usual distance can be told."""
_SELDOM = 0.15
"""Distances between anchors that are odd in up to this proportion are faults of the recording, more are the model."""


@dataclass(frozen=True)
class Roles:
    """What each kernel of a sequence is, in order of start; arrays of one length."""

    token: Ints
    mixer: Bools
    feed_forward: Bools
    norm: Bools
    adding_norm: Bools
    add: Bools
    norm_part: Bools
    point_wise: Bools
    no_layer: Bools
    is_kernel_norm: Bools

    @classmethod
    def of(cls, vocabulary: Vocabulary, numbers: Ints) -> "Roles":
        """Of a sequence of kernels by their numbers in the vocabulary."""
        names = ("mixer", "feed_forward", "norm", "adding_norm", "add", "norm_part", "point_wise", "no_layer")
        found = {name: vocabulary.has(name)[numbers] for name in names}
        is_norm = np.array([category == "norm" for category in vocabulary.categories], bool)
        return cls(token=vocabulary.tokens[numbers], is_kernel_norm=is_norm[numbers], **found)


@dataclass(frozen=True)
class Mark:
    """Where a norm begins, with the residual add before it."""

    start: int
    is_strong: bool
    """It adds a block's output to the residual stream, so it stands between blocks and in none."""
    has_add: bool = False
    """Its first kernel is a residual add."""

    def behind_add(self) -> "Mark":
        """The same norm, begun at its own first kernel."""
        return replace(self, start=self.start + 1, has_add=False) if self.has_add else self


@dataclass(frozen=True)
class Anchor:
    """A kernel that each layer has one of."""

    position: int
    token: int
    after: int
    """Behind the last kernel that is sure to belong to the layer before."""
    begins_pass: bool = False
    """Between it and the layer before lies what belongs to no layer."""
    is_guess: bool = False
    """It was not seen: its kernel is missing, the place is approximate."""


def find_marks(roles: Roles) -> Iterator[Mark]:
    """Where each norm begins: at the residual add before it, or at the first kernel of one written out in parts."""
    for norm in np.flatnonzero(roles.norm).tolist():
        first = norm if roles.is_kernel_norm[norm] or roles.adding_norm[norm] else _first_part(roles, norm)
        has_add = not roles.adding_norm[norm] and first > 0 and bool(roles.add[first - 1])
        start = first - has_add
        follows_output = start == 0 or not roles.point_wise[start - 1] or bool(roles.add[start - 1])
        yield Mark(start, bool(roles.adding_norm[norm]) or (has_add and follows_output), has_add)


def marks_between(marks: Sequence[Mark], first: int, last: int) -> Sequence[Mark]:
    """The marks that start from `first` to `last`, both included; marks are in order."""
    begin = bisect_left(marks, first, key=lambda mark: mark.start)
    return marks[begin : bisect_right(marks, last, lo=begin, key=lambda mark: mark.start)]


def _first_part(roles: Roles, norm: int) -> int:
    first = norm
    while first > max(0, norm - _MAX_NORM_PARTS) and roles.norm_part[first - 1]:
        first -= 1
    return first


@dataclass(frozen=True)
class Evidence:
    """What anchors layers: mixers and feed-forward kernels, or the one of the two that the names show."""

    roles: Roles
    opening: Bools
    """Kernels of which the first in a layer is its anchor."""
    closing: Bools
    """Kernels after which a layer's next anchor belongs to the next layer."""

    @property
    def is_mixer_only(self) -> bool:
        """The names show no feed-forward half."""
        return not self.closing.any()


def evidence_of(roles: Roles, marks: Sequence[Mark]) -> Evidence:
    """What the names of a sequence show of its layers."""
    strong = np.array([mark.start for mark in marks if mark.is_strong], np.int64)
    every = np.array([mark.start for mark in marks], np.int64)
    n_mixers = _n_groups(roles.mixer, strong if len(strong) else every)
    n_feeds = _n_groups(roles.feed_forward, every)
    if n_feeds < _RARE * n_mixers:
        return Evidence(roles, roles.mixer, np.zeros_like(roles.mixer))
    if n_mixers < _RARE * n_feeds:
        return Evidence(roles, roles.feed_forward, roles.feed_forward)
    return Evidence(roles, roles.mixer, roles.feed_forward)


def _n_groups(kernels: Bools, borders: Ints) -> int:
    return len(np.unique(np.searchsorted(borders, np.flatnonzero(kernels), side="right")))


def find_anchors(evidence: Evidence, marks: Sequence[Mark]) -> list[Anchor]:
    """One for each layer, in order."""
    has_strong = any(mark.is_strong for mark in marks)
    mark_kinds = {mark.start: mark.is_strong for mark in marks}
    positions = sorted({*np.flatnonzero(evidence.opening | evidence.closing).tolist(), *mark_kinds})
    found: list[Anchor] = []
    doubtful: list[Anchor] = []
    state = _State()
    for position in positions:
        if position in mark_kinds:
            state.pass_mark(is_strong=mark_kinds[position] or not has_strong)
        opens, closes = bool(evidence.opening[position]), bool(evidence.closing[position])
        if opens:
            anchor = Anchor(position, int(evidence.roles.token[position]), state.after)
            if not found or state.begins_layer(is_mixer_only=evidence.is_mixer_only):
                found.append(anchor)
                state.open_layer()
            elif state.is_closed:
                doubtful.append(replace(anchor, after=state.earlier))
        if opens or closes:
            state.see(position, closes=closes)
    return _with_passes(evidence, _settled(evidence, marks, found, doubtful))


@dataclass
class _State:
    """What has passed since the last anchor."""

    after: int = 0
    earlier: int = 0
    """`after`, but for feed-forward kernels that came where none was due."""
    is_closed: bool = False
    n_marks_since_closed: int = 0
    n_strong_since_seen: int = 0

    def pass_mark(self, *, is_strong: bool) -> None:
        self.n_marks_since_closed += 1
        self.n_strong_since_seen += is_strong

    def begins_layer(self, *, is_mixer_only: bool) -> bool:
        if is_mixer_only:
            return self.n_strong_since_seen > 0
        return (self.is_closed and self.n_marks_since_closed > 0) or self.n_strong_since_seen > 1

    def open_layer(self) -> None:
        self.is_closed = False

    def see(self, position: int, *, closes: bool) -> None:
        if not (closes and self.is_closed and self.n_marks_since_closed):
            self.earlier = position + 1
        self.after = position + 1
        self.n_strong_since_seen = 0
        if closes:
            self.is_closed = True
            self.n_marks_since_closed = 0


@dataclass(frozen=True)
class _Rhythm:
    """What lies between the anchors of neighbouring layers: long layers have no more marks than short ones."""

    marks: Sequence[Mark]
    """The strong ones where there are any: how many norms a block has within itself is its own affair."""
    distance: int
    n_marks: int

    @classmethod
    def of(cls, anchors: Sequence[Anchor], marks: Sequence[Mark]) -> "_Rhythm":
        """The usual one of these anchors."""
        marks = [mark for mark in marks if mark.is_strong] or marks
        distances = [b.position - a.position for a, b in pairwise(anchors)]
        counts = [_n_marks(marks, a, b) for a, b in pairwise(anchors)]
        return cls(marks, median_low(distances), median_low(counts))

    def is_one_layer(self, a: Anchor, b: Anchor) -> bool:
        """Between these two anchors lies what is usual for one layer, and not two short ones."""
        fits = abs(b.position - a.position - self.distance) < TOLERANCE * self.distance
        return fits and _n_marks(self.marks, a, b) < 2 * self.n_marks

    def is_two_layers(self, a: Anchor, b: Anchor) -> bool:
        """Between these two anchors lies what is usual for two layers, and not a long one."""
        fits = abs(b.position - a.position - 2 * self.distance) < TOLERANCE * self.distance
        return fits and 2 * _n_marks(self.marks, a, b) > 3 * self.n_marks

    def is_part(self, a: Anchor, b: Anchor) -> bool:
        """Between these two anchors lies less than a layer, and not a short one."""
        return 2 * (b.position - a.position) < self.distance and _n_marks(self.marks, a, b) < self.n_marks


def _n_marks(marks: Sequence[Mark], a: Anchor, b: Anchor) -> int:
    return len(marks_between(marks, a.position + 1, b.position))


def _settled(
    evidence: Evidence, marks: Sequence[Mark], found: list[Anchor], doubtful: Sequence[Anchor]
) -> list[Anchor]:
    """The anchors in their usual rhythm: some found too many, or without a mark before them, or not at all.

    Only where it is rare that they are not: layers of one model may differ in length by nature.
    """
    if len(found) < _ENOUGH:
        return found
    rhythm = _Rhythm.of(found, marks)
    settled = _without_extra(found, rhythm)
    for anchor in doubtful:
        place = bisect_left(settled, anchor.position, key=lambda other: other.position)
        beside = settled[max(0, place - 1) : place + 1]
        if all(abs(anchor.position - other.position) > (1 - TOLERANCE) * rhythm.distance for other in beside):
            settled.insert(place, anchor)
    return _with_missing(evidence, settled, rhythm)


def _without_extra(anchors: list[Anchor], rhythm: _Rhythm) -> list[Anchor]:
    """Drops anchors within layers; of two neighbours that may be such, the one that leaves the more usual distances."""
    extra = {i for i in range(len(anchors)) if _is_extra(anchors, i, rhythm)}
    if len(extra) > _SELDOM * len(anchors):
        return anchors
    while pairs := [i for i in extra if i + 1 in extra]:
        extra.remove(max((pairs[0], pairs[0] + 1), key=lambda i: _unevenness(anchors, i, rhythm.distance)))
    return [anchor for i, anchor in enumerate(anchors) if i not in extra]


def _is_extra(anchors: Sequence[Anchor], i: int, rhythm: _Rhythm) -> bool:
    if 0 < i < len(anchors) - 1:
        return rhythm.is_one_layer(anchors[i - 1], anchors[i + 1])
    return rhythm.is_part(*(anchors[:2] if i == 0 else anchors[-2:]))


def _unevenness(anchors: Sequence[Anchor], without: int, usual: int) -> int:
    """How far the distances around an anchor would be from the usual one without it."""
    around = [anchors[i].position for i in range(max(0, without - 2), min(len(anchors), without + 3)) if i != without]
    return sum(abs(b - a - usual) for a, b in pairwise(around))


def _with_missing(evidence: Evidence, anchors: list[Anchor], rhythm: _Rhythm) -> list[Anchor]:
    """Puts an anchor in the middle of two layers of one pass that have only one."""
    wide = [
        a
        for a, b in pairwise(anchors)
        if rhythm.is_two_layers(a, b) and not evidence.roles.no_layer[a.position : b.position].any()
    ]
    if len(wide) > _SELDOM * len(anchors):
        return anchors
    missing = [
        replace(anchor, position=anchor.position + rhythm.distance, after=anchor.position + 1, is_guess=True)
        for anchor in wide
    ]
    return sorted([*anchors, *missing], key=lambda anchor: anchor.position)


def _with_passes(evidence: Evidence, anchors: Sequence[Anchor]) -> list[Anchor]:
    """Marks the anchors that begin another forward pass, and lets them begin behind what lies between the passes."""
    found = list(anchors[:1])
    gaps = [(anchor.position - anchor.after, _last_outside(evidence, anchor)) for anchor in anchors[1:]]
    usual = median_low([gap for gap, outside in gaps if outside is None] or [gap for gap, _ in gaps] or [0])
    for anchor, (gap, outside) in zip(anchors[1:], gaps, strict=True):
        if outside is None or gap < usual + HEAD:
            found.append(anchor)
        else:
            found.append(replace(anchor, after=outside + 1, begins_pass=True))
    return found


def _last_outside(evidence: Evidence, anchor: Anchor) -> int | None:
    """The last kernel before an anchor that is sure to belong to no layer; None if the layer before is next to it."""
    outside = np.flatnonzero(evidence.roles.no_layer[anchor.after : anchor.position])
    return anchor.after + int(outside[-1]) if len(outside) else None
