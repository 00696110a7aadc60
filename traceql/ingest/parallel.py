"""Decodes the pieces of a trace in several processes."""

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from typing import IO

from traceql.errors import TraceqlError
from traceql.ingest.pieces import Piece
from traceql.ingest.worker import Decoded, collector_off, decode_pieces, receive_decoded, send_end, send_piece

_MIN_PIECES = 24
"""A shorter trace is decoded sooner than processes are started."""

_MAX_WORKERS = 4
_PIPE_BYTES = 1 << 20
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 28), "MALLOC_TRIM_THRESHOLD_": str(1 << 29)}
"""For glibc in the decoding processes: memory freed after a piece is kept for the next one, not mapped anew."""


class WorkerDiedError(TraceqlError):
    """A decoding process ended before it answered (killed for memory, for example)."""


def decode(pieces: Iterator[Piece], n_workers: int | None = None) -> list[Decoded]:
    """Everything decoded, in no particular order.

    Args:
        pieces: the pieces of one trace, in order.
        n_workers: processes to decode in; by default one for each core that this process may use, at most four.
            With 1, or for a small trace, all happens in this process.

    Raises:
        WorkerDiedError: a process ended before it answered.
    """
    n_workers = n_workers or min(_cores(), _MAX_WORKERS)
    first = list(islice(pieces, _MIN_PIECES)) if n_workers > 1 and sys.executable else []
    if len(first) < _MIN_PIECES:
        return [decode_pieces(chain(first, pieces))]
    return _decode_in_workers(chain(first, pieces), n_workers)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decode_in_workers(pieces: Iterator[Piece], n_workers: int) -> list[Decoded]:
    lock = threading.Lock()

    def next_piece() -> Piece | None:
        with lock:
            return next(pieces, None)

    def feed(worker: "subprocess.Popen[bytes]") -> None:
        pipe = _pipe(worker.stdin)
        while piece := next_piece():
            send_piece(pipe, piece)
        send_end(pipe)

    workers = [_start() for _ in range(n_workers)]
    try:
        with collector_off(), ThreadPoolExecutor(2 * n_workers) as pool:
            fed = [pool.submit(feed, worker) for worker in workers]
            decoded = [pool.submit(receive_decoded, _pipe(worker.stdout)) for worker in workers]
            for done in fed:
                done.result()
            return [part.result() for part in decoded]
    except (BrokenPipeError, EOFError, pickle.UnpicklingError) as error:
        raise WorkerDiedError("a decoding process ended early") from error
    finally:
        for worker in workers:
            _end(worker)


def _start() -> "subprocess.Popen[bytes]":
    code = "import json,sys; sys.path[:] = json.loads(sys.argv[1]); import traceql.ingest.worker as w; w.main()"
    command = [sys.executable, "-c", code, json.dumps([os.path.abspath(p) for p in sys.path])]  # noqa: PTH100
    worker = subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | _KEEP_MEMORY
    )
    for pipe in (worker.stdin, worker.stdout):
        _widen(_pipe(pipe))
    return worker


def _widen(pipe: IO[bytes]) -> None:
    """Makes room for a whole piece in the pipe, where the system can: fewer switches between processes."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except (ImportError, AttributeError, OSError):
        pass


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise WorkerDiedError("a decoding process has no pipe")
    return pipe


def _end(worker: "subprocess.Popen[bytes]") -> None:
    for pipe in (worker.stdin, worker.stdout):
        with suppress(OSError):
            _pipe(pipe).close()
    try:
        worker.wait(timeout=5)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
