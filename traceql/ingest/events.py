"""The shapes in which Kineto writes events and their arguments, for msgspec to decode.

`ts`, `dur` and `args` stay raw: times are parsed from their digits, arguments only where a table needs them. A number
that is not there is `MISSING`, so that most columns of numbers hold nothing but integers.
"""

from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct, field

from traceql.ingest.times import MISSING

_EMPTY = Raw(b"{}")
Shape = TypeVar("Shape", bound=Struct)


class Event(Struct, gc=False):
    """One element of `traceEvents`; absent keys have the defaults below."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Raw = Raw()
    dur: Raw = Raw()
    args: Raw = _EMPTY


class GpuArgs(Struct, gc=False):
    """Arguments of a kernel, memcpy or memset, in the spellings of 2020 to 2026."""

    device: int | None = MISSING
    stream: int | None = MISSING
    correlation: int | None = MISSING
    external_id: int | None = field(name="External id", default=MISSING)
    external_id_2021: int | None = field(name="external id", default=MISSING)
    graph_id: int | None = field(name="graph id", default=MISSING)
    graph_node_id: int | None = field(name="graph node id", default=MISSING)
    grid: list[int] | None = None
    block: list[int] | None = None
    bytes: int | None = MISSING
    annotation: str | None = field(name="name", default=None)
    """Of a graph's node: https://github.com/pytorch/pytorch/pull/194854."""


class CallArgs(Struct, gc=False):
    """Arguments of a runtime or driver call."""

    correlation: int | None = MISSING
    external_id: int | None = field(name="External id", default=MISSING)
    external_id_2021: int | None = field(name="external id", default=MISSING)


class PythonArgs(Struct, gc=False):
    """Arguments of a Python frame."""

    python_id: int | None = field(name="Python id", default=MISSING)
    parent_id: int | None = field(name="Python parent id", default=MISSING)


class SyncArgs(Struct, gc=False):
    """Arguments of a cuda_sync event."""

    device: int | None = MISSING
    stream: int | None = MISSING
    correlation: int | None = MISSING


class MemoryArgs(Struct, gc=False):
    """Arguments of a `[memory]` instant."""

    bytes: int | None = field(name="Bytes", default=MISSING)
    addr: int | None = field(name="Addr", default=MISSING)
    device_type: int | None = field(name="Device Type", default=MISSING)
    device_id: int | None = field(name="Device Id", default=MISSING)
    total_allocated: int | None = field(name="Total Allocated", default=MISSING)
    total_reserved: int | None = field(name="Total Reserved", default=MISSING)


class NameArgs(Struct, gc=False):
    """Arguments of process_name and thread_name metadata."""

    name: str | None = None


_events = msgspec.json.Decoder(list[Event])


def decode_events(array: bytes) -> list[Event]:
    """The events of a JSON array.

    Raises:
        msgspec.MsgspecError: not JSON, or not an array of events. `UnicodeDecodeError` for bytes that are no text.
    """
    return _events.decode(array)


_texts = msgspec.json.Decoder(list[Raw])


def decode_texts(array: bytes) -> list[Raw]:
    """The text of each element of a JSON array: views of `array`, from its first character to its last.

    Raises:
        msgspec.MsgspecError: not JSON, or not an array.
    """
    return _texts.decode(array)


def lenient_event(value: object) -> Event | None:
    """An event from any JSON value, keys of unexpected types at their defaults; None when it is no object."""
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    event = Event(args=Raw(msgspec.json.encode(fields.get("args") or {})))
    event.ph, event.cat, event.name = (_text(fields.get(key)) for key in ("ph", "cat", "name"))
    event.pid, event.tid = (_identity(fields.get(key)) for key in ("pid", "tid"))
    event.ts, event.dur = (Raw(msgspec.json.encode(fields[k]) if k in fields else b"") for k in ("ts", "dur"))
    return event


def lenient_args(shape: type[Shape], raw: bytes) -> Shape:
    """Arguments of which every field that fits is kept: numbers also as digits in a string, the rest null."""
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoded = None
    fields = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    found = shape()
    for info in msgspec.structs.fields(shape):
        value = fields.get(info.encode_name)
        try:
            setattr(found, info.name, msgspec.convert(value, info.type, strict=False))
        except msgspec.ValidationError:
            setattr(found, info.name, None)
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _identity(value: object) -> int | str:
    return value if isinstance(value, int | str) else _text(value)
