"""Layers from nothing but the order of kernels: the method that also works under CUDA graphs.

How the borders are found: `layer_borders`. Here: which activities are the main line of a step, where the activities of
other streams go (where they start), and how alike the layers are, which is the confidence.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceql.analyses.layer_anchors import Roles
from traceql.analyses.layer_borders import Span, find_spans
from traceql.analyses.layer_roles import Vocabulary
from traceql.analyses.layer_tables import PLACEMENT
from traceql.arrays import Bools, Floats, Ints

MAX_CONFIDENCE = 0.9
"""Of a layer that has an exact double in its step; else in proportion to the likeness of its nearest."""
MIN_LIKENESS = 0.6
"""A step whose layers are less alike (median, each to its nearest) is not taken apart."""
MAX_CONVOLUTIONS = 10
"""A step with more runs image or audio networks too, whose blocks look like layers and are none."""
_LEAST_SHARE = 0.1
"""A side stream that runs in fewer of the layers than this takes no part in them: it runs there by coincidence."""


def by_sequence(activities: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, int]]:
    """Table `layer_placement` from the order of kernels, and how many steps were refused for which reason.

    Args:
        activities: GPU activities that were launched inside steps: with `is_main`, sorted by rank, device, step, start.

    A step is refused when it trains, runs many convolutions, shows nothing that repeats, or layers that are not alike.
    """
    vocabulary = Vocabulary(activities)
    numbered = activities.with_columns(number=vocabulary.numbers)
    parts: list[pl.DataFrame] = [PLACEMENT.empty()]
    refused: Counter[str] = Counter()
    known: dict[bytes, list[Span]] = {}
    for _, step in numbered.group_by("rank", "device", "step", maintain_order=True):
        found = _place_step(vocabulary, step, known)
        if isinstance(found, str):
            refused[found] += 1
        else:
            parts.append(found)
    return PLACEMENT.check(pl.concat(parts).sort("kernel_id")), dict(refused)


def _place_step(vocabulary: Vocabulary, step: pl.DataFrame, known: dict[bytes, list[Span]]) -> pl.DataFrame | str:
    """The placement of one step's activities, or why there is none."""
    numbers = step["number"].to_numpy()
    if vocabulary.has("training")[numbers].any():
        return "it trains: layers of backward passes are not looked for"
    if vocabulary.has("convolution")[numbers].sum() > MAX_CONVOLUTIONS:
        return "it runs convolutions: no decoder alone"
    line = np.flatnonzero(step["is_main"].to_numpy())
    sequence = numbers[line]
    key = sequence.tobytes()
    if key not in known:
        known[key] = find_spans(Roles.of(vocabulary, sequence))
    spans = known[key]
    if not spans:
        return "no sequence of kernels repeats in it as layers do"
    kernel_ids, stream, start_ns = (step[name].to_numpy() for name in ("kernel_id", "stream", "start_ns"))
    return _Placing(vocabulary, numbers, kernel_ids, stream, start_ns, line, spans).placement()


@dataclass(frozen=True)
class _Placing:
    """One step's activities, in order of start, and the layers found on its main line."""

    vocabulary: Vocabulary
    numbers: Ints
    kernel_ids: Ints
    stream: Ints
    start_ns: Ints
    line: Ints
    """Positions of the main line's activities."""
    spans: Sequence[Span]

    def placement(self) -> pl.DataFrame | str:
        """Table `layer_placement`, or why there is none."""
        span_of, is_bystander = self._span_of()
        likeness = self._likeness(span_of)
        if np.median(likeness) < MIN_LIKENESS:
            return "what repeats in it is too uneven to be layers"
        inside = span_of >= 0
        of_span = np.where(inside, span_of, 0)
        sure = MAX_CONFIDENCE * likeness * np.array([span.trust for span in self.spans])
        confidence = np.where(inside, sure[of_span], np.median(sure))
        return pl.DataFrame(
            {
                "kernel_id": self.kernel_ids,
                "section": self._sections(span_of, is_bystander),
                "model_pass": np.array([span.model_pass for span in self.spans], np.int64)[of_span],
                "layer": self._layer_numbers()[of_span],
                "block": self._blocks(span_of),
                "confidence": confidence,
                "inside": inside,
            }
        ).with_columns(
            pl.when("inside").then(pl.col("model_pass", "layer", "block")),
            section=pl.when(pl.col("section") != "").then("section"),
        ).select(PLACEMENT.names).cast(dict(PLACEMENT.schema))  # pyright: ignore[reportArgumentType]  # fmt: skip

    def _borders(self, positions: Sequence[int]) -> Ints:
        """Start times of places on the main line; the end of the line is never reached."""
        line_ns = np.append(self.start_ns[self.line], np.iinfo(np.int64).max)
        return line_ns[np.array(positions, np.int64)]

    def _span_of(self) -> tuple[Ints, Bools]:
        """The number of each activity's span, -1 for none; and which run beside a layer without being part of it."""
        start_ns, end_ns = self._borders([s.start for s in self.spans]), self._borders([s.end for s in self.spans])
        by_time = np.searchsorted(start_ns, self.start_ns, side="right") - 1
        found = np.where((by_time >= 0) & (self.start_ns < end_ns[by_time]), by_time, -1)
        on_line = np.full(len(self.line), -1, np.int64)
        for number, span in enumerate(self.spans):
            on_line[span.start : span.end] = number
        found[self.line] = on_line
        is_bystander = self._bystanders(found)
        return np.where(is_bystander, -1, found), is_bystander

    def _bystanders(self, span_of: Ints) -> Bools:
        off_line = np.ones(len(span_of), bool)
        off_line[self.line] = False
        beside = off_line & (span_of >= 0)
        streams, stream_of = np.unique(self.stream, return_inverse=True)
        pairs = np.unique(np.stack([stream_of[beside], span_of[beside]]), axis=1)
        n_layers = np.bincount(pairs[0], minlength=len(streams))
        return beside & (n_layers[stream_of] < _LEAST_SHARE * len(self.spans))

    def _layer_numbers(self) -> Ints:
        passes = np.array([span.model_pass for span in self.spans], np.int64)
        first = np.searchsorted(passes, passes, side="left")
        return np.arange(len(passes)) - first

    def _sections(self, span_of: Ints, is_bystander: Bools) -> list[str]:
        """prologue, layer, epilogue, or nothing: bystanders, and where a layer was cut off."""
        roles = Roles.of(self.vocabulary, self.numbers[self.line])
        evident = self.start_ns[self.line][roles.feed_forward | roles.mixer]
        first_ns, last_ns = self._borders([self.spans[0].start])[0], self._borders([self.spans[-1].end])[0]
        cut_ahead, cut_behind = (evident < first_ns).any(), (evident >= last_ns).any()
        before = "" if cut_ahead else "prologue"
        behind = "" if cut_behind else "epilogue"
        outside = np.where(self.start_ns < first_ns, before, np.where(self.start_ns >= last_ns, behind, "epilogue"))
        outside = np.where(is_bystander, "", outside)
        return np.where(span_of >= 0, "layer", outside).tolist()

    def _likeness(self, span_of: Ints) -> Floats:
        """How alike each layer is to the one most like it: common kernels over all of both, by tokens."""
        tokens = self.vocabulary.tokens[self.numbers]
        counts = np.zeros((len(self.spans), int(tokens.max()) + 1), np.int64)
        inside = span_of >= 0
        np.add.at(counts, (span_of[inside], tokens[inside]), 1)
        kinds, kind_of, times = np.unique(counts, axis=0, return_inverse=True, return_counts=True)
        size = kinds.sum(axis=1)
        shared = kinds[:, np.count_nonzero(kinds, axis=0) > 1]  # one name a layer must not take a minute
        common = np.stack([np.minimum(shared, kind).sum(axis=1) for kind in shared])
        alike = 2 * common / (size[:, None] + size[None, :])
        np.fill_diagonal(alike, times > 1)
        return alike.max(axis=1)[kind_of]

    def _blocks(self, span_of: Ints) -> list[str]:
        categories = np.array(self.vocabulary.categories)[self.numbers]
        is_moe = np.array([category.startswith("moe_") for category in self.vocabulary.categories])[self.numbers]
        mixer, feeds = (self.vocabulary.has(role)[self.numbers] for role in ("mixer", "feed_forward"))
        with_experts = np.isin(span_of, span_of[is_moe])
        fed = np.where(with_experts, "moe", "mlp")
        halves = [-1 if span.feed_forward is None else span.feed_forward for span in self.spans]
        half_ns = np.where(np.array(halves) < 0, -1, self._borders([max(half, 0) for half in halves]))[span_of]
        by_half = np.where(half_ns < 0, "other", np.where(self.start_ns < half_ns, "attention", fed))
        off_line = np.ones(len(self.numbers), bool)
        off_line[self.line] = False
        told = off_line | (half_ns < 0)
        by_role = np.where(told & mixer, "attention", np.where(told & feeds, fed, by_half))
        return np.where(categories == "comm", "comm", by_role).tolist()
