"""Tasks side by side on this machine: a few processes, as many as cores and memory allow.

Workers are plain subprocesses, as decoders are (`traceql.ingest.parallel`), so that one that is killed takes its own
task with it and no other.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import structs

from traceql.fleet.task import Failed, Outcome, Task
from traceql.run import cores, free_bytes

BASE_BYTES = 250 << 20
"""Memory of a worker besides its trace."""
BYTES_PER_JSON = 2.5
"""Memory of a worker for a byte of JSON: 1.5 to 2.0 were measured (docs/scale.md), and some room."""
_SHARE = 0.7
"""Of the free memory, for all workers together."""
_MAX_DECODERS = 4


def memory_of(task: Task) -> int:
    """What a worker takes for a task at the most."""
    return BASE_BYTES + int(task.source.json_bytes * BYTES_PER_JSON)


def run_here(
    tasks: Sequence[Task], *, jobs: int | None = None, retries: int = 1, budget_bytes: int | None = None
) -> Iterator[tuple[Task, Outcome]]:
    """Each task with its outcome, as they end.

    Args:
        tasks: what is to be done.
        jobs: processes at a time; by default one a core.
        retries: how often a task is tried again whose worker died, or whose file could not be had.
        budget_bytes: memory for all workers; by default 70 % of what is free. A task beyond it runs alone.
    """
    n_cores = cores()
    n_at_once = max(1, min(jobs or n_cores, len(tasks)))
    share = max(1, n_cores // n_at_once)
    pool = _Pool(tasks, retries, budget_bytes or int(free_bytes() * _SHARE), min(share, _MAX_DECODERS))
    threads = [threading.Thread(target=pool.work, args=(share,), daemon=True) for _ in range(n_at_once)]
    for thread in threads:
        thread.start()
    try:
        for _ in tasks:
            yield pool.ended.get()
    finally:
        pool.stop()
        for thread in threads:
            thread.join()


class _Pool:
    """The tasks that wait, the memory that is taken, and the workers that run."""

    def __init__(self, tasks: Sequence[Task], retries: int, budget_bytes: int, n_decoders: int) -> None:
        self.ended: queue.Queue[tuple[Task, Outcome]] = queue.Queue()
        self._waiting = deque((structs.replace(task, n_decoders=n_decoders), task) for task in tasks)
        self._retries = retries
        self._free_bytes = budget_bytes
        self._n_running = 0
        self._changed = threading.Condition()
        self._workers: set[_Worker] = set()
        self._is_stopped = False

    def work(self, n_threads: int) -> None:
        """Takes tasks until there is none, in one worker; in another one when that died."""
        worker: _Worker | None = None
        while found := self._next():
            own, task = found
            outcome: Outcome = Failed("it was not tried", is_final=False)
            for _ in range(self._retries + 1):
                try:
                    worker = worker or self._started(n_threads)
                except OSError as error:  # no process, no memory: the ingest must hear of it
                    outcome = Failed(f"no worker could be started: {error.strerror}", is_final=False)
                    continue
                outcome = worker.answer(own)
                if worker.is_dead:
                    self._end(worker)
                    worker = None
                if self._is_stopped or not isinstance(outcome, Failed) or outcome.is_final:
                    break
            self._give_back(own)
            self.ended.put((task, outcome))
        if worker:
            self._end(worker)

    def stop(self) -> None:
        """Ends all workers at once."""
        with self._changed:
            self._is_stopped = True
            self._waiting.clear()
            workers = [*self._workers]
            self._changed.notify_all()
        for worker in workers:
            worker.kill()

    def _next(self) -> tuple[Task, Task] | None:
        """The next task that there is memory for; waits for it."""
        with self._changed:
            while self._waiting:
                for found in self._waiting:
                    if memory_of(found[0]) <= self._free_bytes or not self._n_running:
                        self._waiting.remove(found)
                        self._free_bytes -= memory_of(found[0])
                        self._n_running += 1
                        return found
                self._changed.wait()
            return None

    def _give_back(self, task: Task) -> None:
        with self._changed:
            self._free_bytes += memory_of(task)
            self._n_running -= 1
            self._changed.notify_all()

    def _started(self, n_threads: int) -> "_Worker":
        worker = _Worker(n_threads)
        with self._changed:
            self._workers.add(worker)
        if self._is_stopped:
            worker.kill()
        return worker

    def _end(self, worker: "_Worker") -> None:
        worker.close()
        with self._changed:
            self._workers.discard(worker)


class _Worker:
    """A process that takes a task a line."""

    def __init__(self, n_threads: int) -> None:
        code = "import json,sys; sys.path[:] = json.loads(sys.argv[1]); import traceql.fleet.task as task; task.main()"
        paths = json.dumps([os.path.abspath(path) for path in sys.path])  # noqa: PTH100 - as the import system has them
        self._process = subprocess.Popen(  # noqa: S603 - our own code
            [sys.executable, "-c", code, paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"POLARS_MAX_THREADS": str(n_threads), "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            start_new_session=True,  # Ctrl-C ends it through `kill`, with its decoders
        )
        self.is_dead = False

    def answer(self, task: Task) -> Outcome:
        """What became of the task; a worker that dies over it is dead from then on."""
        line = b""
        with suppress(OSError):
            assert self._process.stdin  # noqa: S101 - a pipe was asked for
            assert self._process.stdout  # noqa: S101
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=Outcome)
        self.is_dead = True
        return Failed(
            f"its worker {_how_ended(self._process.wait())}",
            "If memory ran out, use fewer --jobs or a larger machine.",
            is_final=False,
        )

    def kill(self) -> None:
        """Ends it and its decoders, now."""
        if self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Lets it end; it has nothing left to do."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()


def _how_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
