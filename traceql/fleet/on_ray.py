"""Tasks on a Ray cluster: each asks for the memory that it needs, and a node that fails costs its own tasks one try."""

import importlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from traceql.errors import InputError
from traceql.fleet.local import memory_of
from traceql.fleet.task import Failed, Outcome, Stuck, Task, ingest_file

_KNOCK_S = 10.0
_ENVIRONMENT = {"env_vars": {"POLARS_MAX_THREADS": "1"}}
"""Of the workers: a task has one core."""
_PER_CORE = 4
"""Tasks handed to Ray for each core at a time: enough that no core waits, few enough to stop soon."""


def run_on_ray(
    tasks: Sequence[Task], *, address: str | None = None, jobs: int | None = None, retries: int = 1
) -> Iterator[tuple[Task, Outcome]]:
    """Each task with its outcome, as they end; the same outcomes as `traceql.fleet.local.run_here` has.

    All nodes must see the files and the store under the same paths or URLs, and have traceql installed.

    Args:
        tasks: what is to be done.
        address: of the cluster; by default as RAY_ADDRESS says, else one is started here for the time being.
        jobs: tasks at a time; by default as many as cores and memory of the cluster allow.
        retries: how often a task is tried again whose worker or node died, or whose file could not be had.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        module: Any = importlib.import_module("ray")  # only with the extra, and its types are of little help
    except ImportError as error:
        raise InputError("Ray is not installed", "Install it with `pip install 'traceql[ray]'`.") from error
    is_ours = not module.is_initialized()
    if is_ours:
        _connect(module, address)
    try:
        yield from _run(module, tasks, jobs, retries)
    finally:
        if is_ours:
            module.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    try:
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        _knock(where)
        alone: dict[str, Any] = {"include_dashboard": False} if where == "local" else {}
        ray.init(address=where, log_to_driver=False, logging_level="ERROR", runtime_env=_ENVIRONMENT, **alone)
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError is an OSError
        first_line = str(error).partition("\n")[0][:300]
        raise InputError(f"no Ray cluster at {address or 'RAY_ADDRESS'}: {first_line}", "Check --address.") from error


def _knock(where: str) -> None:
    """Finds out at once whether anybody listens there; Ray itself would try for minutes.

    Raises:
        OSError: nobody does.
    """
    host, colon, port = where.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _run(ray: Any, tasks: Sequence[Task], jobs: int | None, retries: int) -> Iterator[tuple[Task, Outcome]]:
    remote = ray.remote(max_retries=0, num_cpus=1)(_answer)  # they are tried again here, all alike
    most_bytes = max((node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0)
    n_at_once = jobs or max(1, int(ray.cluster_resources().get("CPU", 1))) * _PER_CORE
    tries = dict.fromkeys(range(len(tasks)), retries)
    waiting = [*reversed(range(len(tasks)))]
    running: dict[Any, int] = {}
    try:
        while waiting or running:
            while waiting and len(running) < n_at_once:
                number = waiting.pop()
                memory = min(memory_of(tasks[number]), int(most_bytes * 0.9))  # one beyond all nodes has a node alone
                asked = remote.options(memory=memory or None, name=f"ingest {tasks[number].source.name}")
                running[asked.remote(msgspec.json.encode(tasks[number]))] = number
            done, _ = ray.wait([*running], num_returns=1)
            number = running.pop(done[0])
            outcome = _outcome(ray, done[0])
            if isinstance(outcome, Failed) and not outcome.is_final and tries[number]:
                tries[number] -= 1
                waiting.append(number)
                continue
            yield tasks[number], outcome
    finally:
        for each in running:
            ray.cancel(each, force=True)


def _answer(task: bytes) -> bytes:
    """A task on a node: JSON in and out, so that driver and node need not share more than its form."""
    return msgspec.json.encode(ingest_file(msgspec.json.decode(task, type=Task)))


def _outcome(ray: Any, reference: Any) -> Outcome:
    errors = ray.exceptions
    try:
        return msgspec.json.decode(ray.get(reference), type=Outcome)
    except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError, errors.ObjectLostError) as error:
        return Failed(f"its worker died: {_words(error)}", "If memory ran out, use larger nodes.", is_final=False)
    except errors.RayTaskError as error:
        return Stuck(f"a node cannot run tasks: {_words(error)}", "Install the same traceql on all nodes.")
    except errors.RayError as error:
        return Failed(f"its worker died: {_words(error)}", is_final=False)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
