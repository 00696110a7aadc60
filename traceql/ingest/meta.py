"""What a trace file says about itself: device, rank, versions, recorded options."""

import json
import re
from typing import Any, cast

import msgspec

from traceql.ingest.ranks import RANKS


class Device(msgspec.Struct, frozen=True):
    """A GPU as listed in `deviceProperties`; null where the file does not say."""

    id: int
    name: str | None = None
    total_memory_bytes: int | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    n_sms: int | None = None


class TraceMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one trace file. Null is unknown."""

    name: str
    """File name without its folder; `-` for standard input."""
    size_bytes: int
    """Size as uncompressed JSON."""
    n_events: int
    """Elements of `traceEvents`, all phases."""
    base_time_ns: int | None = None
    """`baseTimeNanoseconds`: what every `ts` counts from, since 1970."""
    first_event_ns: int | None = None
    """Zero of the tables' time, in ns of the file's own `ts`."""
    span_ns: int | None = None
    """From the first to the last moment of any timed event."""
    rank: int | None = None
    world_size: int | None = None
    devices: tuple[Device, ...] = ()
    record_shapes: bool | None = None
    with_stack: bool | None = None
    profile_memory: bool | None = None
    with_flops: bool | None = None
    cuda_driver_version: str | None = None
    cuda_runtime_version: str | None = None
    torch_version: str | None = None
    nccl_version: str | None = None
    engine: str | None = None
    """sglang, vllm or tensorrt-llm, where the trace shows one."""
    trace_id: str | None = None
    event_counts: dict[str, int] = {}
    """Events by `phase category` as recorded, e.g. `X kernel`."""


def read_meta(header: bytes, after_events: bytes | None) -> tuple[dict[str, Any], bool]:
    """The keys around `traceEvents`, and whether all of what stands around the events could be read.

    Args:
        header: the file up to the bracket that opens the event array.
        after_events: the file from the bracket that closes it; None when that was not seen.

    What follows a damaged place is left out.
    """
    if after_events is not None:
        keys = _mapping_of(header + b"[" + after_events)
        if keys is not None:
            return keys, True
    return _mapping_of(header + b"[]}") or {}, False


def _mapping_of(text: bytes) -> dict[str, Any] | None:
    from traceql.ingest.salvage import repair  # noqa: PLC0415 - what is read from the cache needs no reader

    for attempt in (text, repair(text)[0]):
        try:
            return _mapping(_json.decode(attempt.decode(errors="replace")))
        except (ValueError, RecursionError):
            continue
    return None


_json = json.JSONDecoder(strict=False)


def distributed_rank(keys: dict[str, Any]) -> int | None:
    """The rank in `distributedInfo`; None for a number that no rank has."""
    rank = _integer(_mapping(keys.get("distributedInfo")).get("rank"))
    return rank if rank in RANKS else None


def _world_size(keys: dict[str, Any]) -> int | None:
    size = _integer(_mapping(keys.get("distributedInfo")).get("world_size"))
    return size if size is not None and size - 1 in RANKS else None


def trace_meta(keys: dict[str, Any], **measured: Any) -> TraceMeta:
    """The facts about a trace: from the keys around the events, and measured ones as they are."""
    distributed = _mapping(keys.get("distributedInfo"))
    listed = keys.get("deviceProperties")
    properties = cast("list[object]", listed) if isinstance(listed, list) else []
    devices = [_device(i, _mapping(each)) for i, each in enumerate(properties)]
    return TraceMeta(
        base_time_ns=_integer(keys.get("baseTimeNanoseconds")),
        rank=distributed_rank(keys),
        world_size=_world_size(keys),
        devices=tuple(devices),
        record_shapes=_option(keys, "record_shapes"),
        with_stack=_option(keys, "with_stack"),
        profile_memory=_option(keys, "profile_memory"),
        with_flops=_option(keys, "with_flops"),
        cuda_driver_version=_version(keys, "cuda_driver_version", "hip_driver_version"),
        cuda_runtime_version=_version(keys, "cuda_runtime_version", "hip_runtime_version"),
        torch_version=_version(keys, "torch_version", "pytorch_version"),
        nccl_version=_text(distributed.get("nccl_version")),
        trace_id=_text(keys.get("trace_id")),
        **measured,
    )


def _device(index: int, properties: dict[str, Any]) -> Device:
    number = _integer(properties.get("id"))
    return Device(
        id=index if number is None else number,
        name=_text(properties.get("name")) or None,
        total_memory_bytes=_integer(properties.get("totalGlobalMem")),
        compute_major=_integer(properties.get("computeMajor")),
        compute_minor=_integer(properties.get("computeMinor")),
        n_sms=_integer(properties.get("numSms")),
    )


def _option(keys: dict[str, Any], name: str) -> bool | None:
    """A recorded option. Kineto writes only those that are on, once it writes any of its own keys."""
    if name in keys:
        return bool(_integer(keys[name]))
    return False if "schemaVersion" in keys and "trace_id" in keys else None


def _version(keys: dict[str, Any], *names: str) -> str | None:
    """A version; CUDA's 12080 is 12.8, HIP's 60443483 is 6.4.43483."""
    for name in names:
        number = _integer(keys.get(name))
        if name.startswith("cuda") and number and number >= 1000:
            return f"{number // 1000}.{number % 1000 // 10}"
        if name.startswith("hip") and number and number >= 10_000_000:
            return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
        if keys.get(name) is not None:
            return _text(keys[name])
    return None


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _integer(value: object) -> int | None:
    if isinstance(value, int):
        return int(value)
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else None


def _text(value: object) -> str | None:
    return None if value is None else str(value).encode(errors="replace").decode()  # halves of surrogate pairs
