"""Where layers begin and end in one sequence of kernels.

A decoder layer reads the residual stream through a norm, mixes tokens (attention), reads it again through a norm and
feeds it forward. So its first kernel is found in three steps, on the stream that runs most of a step's kernels:

1. *Anchors*: the first mixer kernel (attention, rotary embedding, KV write) after a feed-forward one. One a layer.
2. *Marks*: where a block's output enters the residual stream: the residual add before a norm, the norm that adds, also
   fused with an all-reduce. Norms within a block (of queries, of a compressed KV row) are weaker marks.
3. A layer starts at the mark between the last feed-forward kernel and the anchor that is as far from its anchor as the
   others' are from theirs (the median distance): repetition settles what a single layer leaves open.

A residual add before the norm begins the layer, unless the first layer has none: then it ends the layer whose output it
adds, so that all layers have the same kernels. Models are written in both ways.

The last layer of a pass ends as far behind its last feed-forward kernel as the others do. Kernels of other streams go
where they start. Kernels of one kind have roles (`layer_roles`), so neither template arguments, GEMM tiles, optional
kernels, nor a missing mark or anchor here and there move a border.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median_low

import numpy as np

from traceql.analyses.layer_anchors import (
    HEAD,
    TOLERANCE,
    Anchor,
    Evidence,
    Mark,
    Roles,
    evidence_of,
    find_anchors,
    find_marks,
    marks_between,
)
from traceql.analyses.layer_kinds import Bag, likeness

_SAME = 0.8
"""Likeness from which stretches between two marks count as the same, where no name shows more than the marks."""
_MOST = 0.7
"""Share of a step's stretches that must repeat then."""
_MOST_MARKS = 8
"""Marks of a layer at most, then."""
_LEAST_KERNELS = 4
"""Of a layer that marks alone tell: two halves, each with a norm and something to do. Less is a row of norms."""
_UNNAMED = 0.6
"""Trust in layers of which marks alone tell: the place of the first rests on the first mark that repeats."""
_FEW = 12
"""Anchoring kernels of the first layer that are looked at."""


@dataclass(frozen=True)
class Span:
    """A layer: a half-open range of positions in the sequence."""

    start: int
    end: int
    model_pass: int
    feed_forward: int | None
    """Where its second half begins; None where that cannot be told."""
    trust: float = 1.0
    """Below 1 where nothing but norms that repeat showed it."""


def find_spans(roles: Roles) -> list[Span]:
    """The layers of one step's main stream, in order; empty where nothing repeats.

    Layers that are cut off at either end of the sequence are left out.
    """
    marks = list(find_marks(roles))
    if not (roles.mixer | roles.feed_forward).any():
        return _repeating_spans(roles, marks)
    evidence = evidence_of(roles, marks)
    anchors = find_anchors(evidence, marks)
    if len(anchors) < 2:
        return []
    starts = _starts(evidence, anchors, marks)
    borders = marks
    if _adds_end_layers(anchors, starts, marks):
        borders = [mark.behind_add() for mark in marks]
        starts = _starts(evidence, anchors, borders)
    return list(_spans(evidence, anchors, starts, borders, marks))


def _repeating_spans(roles: Roles, marks: Sequence[Mark]) -> list[Span]:
    """Layers where no name shows what a block does: the shortest group of norms whose kernels repeat."""
    borders = [mark.start for mark in marks]
    parts: list[Bag] = [Counter(roles.token[a:b].tolist()) for a, b in pairwise([*borders, len(roles.token)])]
    for period in range(1, _MOST_MARKS + 1):
        alike = [likeness(one, other) >= _SAME for one, other in zip(parts, parts[period:])]  # noqa: B905 - pairs
        run = max((places for is_alike, places in _runs(alike) if is_alike), key=len, default=list[int]())
        n_layers = (len(run) + period) // period
        if n_layers > 1 and len(run) + period >= _MOST * len(parts):
            starts = [borders[run[0] + i * period] for i in range(n_layers)]
            usual = median_low([b - a for a, b in pairwise(starts)])
            if usual < _LEAST_KERNELS:
                return []
            ends = [*starts[1:], min(starts[-1] + usual, len(roles.token))]
            return [Span(a, b, 0, None, trust=_UNNAMED) for a, b in zip(starts, ends, strict=True)]
    return []


def _runs(flags: Sequence[bool]) -> Iterator[tuple[bool, list[int]]]:
    """Runs of equal flags: the flag, and the positions."""
    for key, group in groupby(range(len(flags)), key=lambda i: flags[i]):
        yield key, list(group)


def _starts(evidence: Evidence, anchors: Sequence[Anchor], marks: Sequence[Mark]) -> list[int | None]:
    """Where each anchor's layer begins; None where that cannot be told."""
    windows = [_window(anchor, marks) for anchor in anchors]
    usual = _usual_distances(evidence, anchors, windows)
    found = [_first_start(evidence, anchors, marks, usual)]
    for anchor, window in list(zip(anchors, windows, strict=True))[1:]:
        wanted = anchor.position - usual[anchor.token]
        nearest = min((mark.start for mark in window), key=lambda start: abs(start - wanted), default=None)
        if nearest is None and wanted >= anchor.after:  # its mark is missing
            nearest = wanted
        found.append(nearest)
    return found


def _adds_end_layers(anchors: Sequence[Anchor], starts: Sequence[int | None], marks: Sequence[Mark]) -> bool:
    """Whether the residual add is a layer's last kernel: most layers begin at one, but passes do not.

    A step that begins with the first layer's norm tells nothing: the add before it may have been cut off.
    """
    has_add = {mark.start: mark.has_add for mark in marks if mark.start}
    of_pass = [number == 0 or anchor.begins_pass for number, anchor in enumerate(anchors)]
    of_starts = [(begins_pass, has_add[start]) for begins_pass, start in zip(of_pass, starts, strict=True)
                 if start in has_add]  # fmt: skip
    first = [added for begins_pass, added in of_starts if begins_pass]
    later = [added for begins_pass, added in of_starts if not begins_pass]
    return 2 * sum(first) < len(first) and 2 * sum(later) > len(later)


def _first_start(
    evidence: Evidence, anchors: Sequence[Anchor], marks: Sequence[Mark], usual: Mapping[int, int]
) -> int | None:
    """Where the first layer begins: at the mark that is at the usual distance from a kernel that anchors layers.

    Before it stands no layer that would tell, but a prologue, perhaps with norms and the like of its own.
    """
    openers = np.flatnonzero(evidence.opening[: anchors[1].position])[:_FEW].tolist()
    pairs = [
        (abs(opener - mark.start - usual[int(evidence.roles.token[opener])]), opener, mark.start)
        for opener in openers
        for mark in marks_between(marks, 0, opener)
    ]
    distance, opener, start = min(pairs, default=(len(evidence.opening), anchors[0].position, 0))
    wanted = usual[int(evidence.roles.token[opener])]
    if distance <= max(HEAD, TOLERANCE * wanted):
        usual_start = max(start, opener - wanted)  # what stands before a norm in parts may look like one of them
        return usual_start if evidence.roles.norm_part[start:usual_start].all() else start
    missing = anchors[0].position - usual[anchors[0].token]  # its mark is missing, unless it was cut off
    return missing if missing >= 0 else None


def _window(anchor: Anchor, marks: Sequence[Mark]) -> Sequence[Mark]:
    """The marks at which an anchor's layer may begin: behind the layer before, and behind what lies in no layer."""
    found = marks_between(marks, anchor.after, anchor.position)
    strong = [mark for mark in found if mark.is_strong]
    return strong if strong and anchor.is_guess else found


def _usual_distances(
    evidence: Evidence, anchors: Sequence[Anchor], windows: Sequence[Sequence[Mark]]
) -> Mapping[int, int]:
    """From a layer's start to its anchor, for each kind of anchor kernel: as the layers but the first show it.

    Behind the feed-forward half the first strong mark begins the next layer. Where that half is not to be told, marks
    of both halves are there: the last strong one is the next layer's; if there is none, a layer has as many marks
    before its anchor as the first one, before which no other layer stands.
    """
    found: dict[int, list[int]] = {}
    weak: set[int] = set()
    for anchor, window in list(zip(anchors, windows, strict=True))[1:]:
        strong = [mark for mark in window if mark.is_strong]
        if not window or anchor.is_guess:
            continue
        if anchor.begins_pass:
            mark = window[0]  # a strong one may already be the second half's
        elif not evidence.is_mixer_only:
            mark = (strong or window)[0]
        else:
            mark = strong[-1] if strong else window[max(0, len(window) - max(1, len(windows[0])))]
        found.setdefault(anchor.token, []).append(anchor.position - mark.start)
        if not mark.is_strong:
            weak.add(anchor.token)
    overall = median_low([distance for distances in found.values() for distance in distances] or [0])
    usual = {
        token: _most_usual(distances, overall)
        for token, distances in found.items()
        if len(distances) > 1 or token not in weak  # a weak mark alone tells nothing
    }
    return defaultdict(lambda: overall, usual)


def _most_usual(distances: Sequence[int], overall: int) -> int:
    """The commonest distance; of equally common ones that nearest to what all kinds of anchors show."""
    counts = Counter(distances)
    return min(counts, key=lambda distance: (-counts[distance], abs(distance - overall), distance))


def _spans(
    evidence: Evidence,
    anchors: Sequence[Anchor],
    starts: Sequence[int | None],
    borders: Sequence[Mark],
    marks: Sequence[Mark],
) -> Iterator[Span]:
    """The whole layers: `borders` are the marks between them, `marks` those between their halves."""
    tails = _usual_tails(evidence, anchors, starts)
    n_kernels = len(evidence.roles.token)
    model_pass = 0
    for anchor, start, following, next_start in zip(
        anchors, starts, [*anchors[1:], None], [*starts[1:], None], strict=True
    ):
        model_pass += anchor.begins_pass
        end = next_start
        if following is None or following.begins_pass or next_start is None:
            before = following.position if following else n_kernels
            last = _last_evidence(evidence, anchor, before)
            end = _end_of_pass(evidence, anchor, last, borders, tails)
            if end is not None and following is not None:
                end = min(end, before if next_start is None else next_start)
        if start is not None and end is not None and start < end <= n_kernels:
            yield Span(start, end, model_pass, _second_half(evidence, anchor, range(start, end), marks))


def _last_evidence(evidence: Evidence, anchor: Anchor, before: int) -> int:
    seen = np.flatnonzero((evidence.opening | evidence.closing)[anchor.position : before])
    return anchor.position + (int(seen[-1]) if len(seen) else 0)


def _usual_tails(evidence: Evidence, anchors: Sequence[Anchor], starts: Sequence[int | None]) -> dict[int, int]:
    """From the last kernel that shows a layer to the next layer's start, for each kind of such kernel: the mode."""
    found: dict[int, Counter[int]] = {}
    for (anchor, following), start in zip(pairwise(anchors), starts[1:], strict=True):
        last = _last_evidence(evidence, anchor, following.position)
        if start is not None and not following.begins_pass:
            found.setdefault(int(evidence.roles.token[last]), Counter())[start - last] += 1
    return {token: max(tails, key=lambda tail: (tails[tail], -tail)) for token, tails in found.items()}


def _end_of_pass(
    evidence: Evidence, anchor: Anchor, last: int, marks: Sequence[Mark], tails: Mapping[int, int]
) -> int | None:
    """Where a layer ends that no other follows: as far behind its last sure kernel as others of its kind, or a mark.

    None where that is not to be told, or the layer is cut off before its feed-forward half.
    """
    if not (evidence.is_mixer_only or evidence.closing[anchor.position : last + 1].any()):
        return None
    tail = tails.get(int(evidence.roles.token[last]))
    behind = marks_between(marks, last + 1, len(evidence.opening))
    if tail is None:
        strong = [mark for mark in behind if mark.is_strong]
        return (strong or behind)[0].start if behind else None
    close = [mark.start for mark in behind if abs(mark.start - last - tail) <= 2]
    return min(close, key=lambda start: abs(start - last - tail), default=last + tail)


def _second_half(evidence: Evidence, anchor: Anchor, layer: range, marks: Sequence[Mark]) -> int | None:
    """Where a layer's feed-forward half begins: at the mark between its last mixer and first feed-forward kernel."""
    mixers = np.flatnonzero(evidence.roles.mixer[anchor.position : layer.stop])
    if not len(mixers):  # the anchor is the feed-forward half's
        before = marks_between(marks, layer.start + 1, anchor.position)
        strong = [mark for mark in before if mark.is_strong]
        return (strong or before)[-1].start if before else None
    last_mixer = anchor.position + int(mixers[-1])
    feeds = np.flatnonzero(evidence.roles.feed_forward[last_mixer : layer.stop])
    limit = last_mixer + int(feeds[0]) if len(feeds) else layer.stop - 1
    between = marks_between(marks, last_mixer + 1, limit)
    strong = [mark for mark in between if mark.is_strong]
    return (strong or between)[0].start if between else None
