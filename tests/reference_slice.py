"""A slow reader of traces for the tests of `slice` and `merge`: plain json, one event at a time, nothing of traceql."""

import gzip
import json
import lzma
from bisect import bisect_left
from collections import Counter, defaultdict
from decimal import ROUND_HALF_UP, Decimal

import zstandard

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
CALLS = {"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"}
HOST = {
    "cpu_op", "operator", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "runtime", "python_function",
    "user_annotation", "overhead",
}  # fmt: skip


def text_of(path):
    """The unpacked text of a file."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    elif data[:6] == b"\xfd7zXZ\x00":
        data = lzma.decompress(data)
    return data.decode("utf-8-sig")


def events_of(path):
    """(event, its text) of a file that is sound JSON; times in ns, exactly, in `start` and `end`."""
    text = text_of(path)
    decoder = json.JSONDecoder(parse_float=Decimal, strict=False)
    at = text.index("[", text.index('"traceEvents"')) if '"traceEvents"' in text else text.index("[")
    found = []
    at = _skip(text, at + 1)
    while text[at] != "]":
        event, end = decoder.raw_decode(text, at)
        event["start"] = int(event.get("ts", 0) * 1000)
        event["end"] = event["start"] + int(event.get("dur", 0) * 1000)
        found.append((event, text[at:end]))
        at = _skip(text, end)
    return found


def _skip(text, at):
    while text[at] in " \t\r\n,":
        at += 1
    return at


def keys_of(path):
    """What stands around the events."""
    document = json.loads(text_of(path), strict=False)
    return {key: value for key, value in document.items() if key != "traceEvents"} if isinstance(document, dict) else {}


def perfetto_ns(us):
    """What Perfetto makes of a time in µs: integers as they are, doubles times 1000, rounded half away from zero."""
    us = float(us)
    return int(us) * 1000 if us.is_integer() else int(Decimal(us * 1000.0).to_integral_value(ROUND_HALF_UP))


def perfetto_thread(event):
    """What Perfetto takes for an event's thread: the process's own where the number is not in its range."""
    pid, tid = (0 if isinstance(n, int) and not 0 < n < 1 << 32 else n for n in (event["pid"], event["tid"]))
    return pid, pid if tid == 0 else tid


def dropped(path):
    """How many slices a viewer drops: as Perfetto's tracker stacks them, by its own reading of times and threads.

    `tests/test_viewers.py` compares it with Perfetto's own engine.
    """
    by_thread = defaultdict(list)
    document = json.loads(text_of(path))
    for event in document["traceEvents"] if isinstance(document, dict) else document:
        if event.get("ph") == "X":
            start, dur = (perfetto_ns(event[key]) for key in ("ts", "dur"))
            by_thread[perfetto_thread(event)].append((start, -dur))
    n_dropped = 0
    for slices in by_thread.values():
        stack = []
        for start, negative in sorted(slices):
            dur = -negative
            while stack:
                end, length = stack[-1]
                if not (end < start or (end == start and not (length == 0 and dur == 0))):
                    break
                stack.pop()
            if stack and start < stack[-1][0] < start + dur:
                n_dropped += 1
            else:
                stack.append((start + dur, dur))
    return n_dropped


def meets(event, start, end):
    """Whether an event has time in common with [start, end)."""
    return event["start"] < end and max(event["end"], event["start"] + 1) > start


def expected_step(events, label, step):
    """The numbers of the events that belong to a step, which an annotation with that label marks.

    Args:
        events: of the whole file.
        label: whether a name is a step's.
        step: 0-based.
    """
    marks = sorted(e["start"] for e, _ in events if e.get("cat") == "user_annotation" and label(e["name"]))
    ends = {e["start"]: e["end"] for e, _ in events if e.get("cat") == "user_annotation" and label(e["name"])}
    begin = marks[step]
    is_last = step + 1 == len(marks)
    until = ends[begin] if is_last else max(marks[step + 1], ends[begin])
    calls = {}
    for event, _ in events:
        if event.get("cat") in CALLS:
            calls.setdefault(event["args"].get("correlation"), []).append(event)
    launch_of = {
        c: next((e for e in es if "aunch" in e["name"] or "Mem" in e["name"]), es[0]) for c, es in calls.items()
    }
    kept = set()
    stretches = defaultdict(list)
    for i, (event, _) in enumerate(events):
        if event.get("cat") in GPU:
            call = launch_of.get(event["args"].get("correlation"))
            if call and begin <= call["start"] and (is_last or call["start"] < marks[step + 1]):
                kept.add(i)
                stretches[call["pid"], call["tid"]].append((call["start"], max(call["end"], call["start"] + 1)))
    for thread in stretches:
        stretches[thread] = _union(stretches[thread])
    gpu = [events[i][0] for i in kept]
    both = [(begin, until)] + ([(min(e["start"] for e in gpu), max(e["end"] for e in gpu))] if gpu else [])
    for i, (event, _) in enumerate(events):
        if event["ph"] == "M":
            kept.add(i)
        elif event.get("cat") in HOST:
            mine = stretches[event["pid"], event["tid"]]
            if meets(event, begin, until) or _meets_any(event, mine):
                kept.add(i)
        elif event.get("cat") == "gpu_user_annotation":
            below = (k for k in gpu if (k["pid"], k["tid"]) == (event["pid"], event["tid"]))
            if any(meets(k, event["start"], event["end"]) for k in below):
                kept.add(i)
        elif event["ph"] in "iICX" and event.get("cat") not in GPU and any(meets(event, *each) for each in both):
            kept.add(i)
    return kept | _arrows(events, kept)


def _meets_any(event, stretches):
    """Whether it has time in common with one of the sorted stretches, which calls of one thread are: none overlaps."""
    at = bisect_left(stretches, (max(event["end"], event["start"] + 1), 0))
    return any(meets(event, *stretch) for stretch in stretches[max(at - 2, 0) : at])


def _union(stretches):
    joined = []
    for start, end in sorted(stretches):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _arrows(events, kept):
    """The arrows of which both ends land on a kept slice."""
    slices = defaultdict(list)
    for i in kept:
        event = events[i][0]
        if event["ph"] == "X" and event["cat"] != "gpu_user_annotation":
            slices[event["pid"], event["tid"]].append((event["start"], max(event["end"], event["start"] + 1)))
    slices = {thread: _union(found) for thread, found in slices.items()}
    ends = defaultdict(lambda: defaultdict(list))
    for i, (event, _) in enumerate(events):
        if event["ph"] in "stf" and _meets_any(
            {"start": event["start"], "end": event["start"]}, slices.get((event["pid"], event["tid"]), [])
        ):
            ends[event["cat"], event["name"], event["id"]][event["ph"]].append(i)
    return {i for found in ends.values() if found["s"] and found["f"] for numbers in found.values() for i in numbers}


def kernel_sums(events):
    """ns of GPU activities by category of the file."""
    sums = Counter()
    for event, _ in events:
        if event.get("cat") in GPU and event["ph"] == "X":
            sums[event["cat"]] += event["end"] - event["start"]
    return sums
