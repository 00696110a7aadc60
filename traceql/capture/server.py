"""A server process of our own: started, watched, and ended with everything that it started.

Its processes are known by a mark in their environment, which children inherit even when they leave the process group
or lose their parent.
"""

import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from traceql.capture.errors import CaptureError, optional, printable
from traceql.errors import OutputError

MARK = "TRACEQL_CAPTURE"
"""Environment variable that marks the processes of one capture."""
GRACE_S = 10.0
"""How long processes have to end by themselves before they are killed."""
SETTLE_S = 0.05
TAIL_BYTES = 3000


class Server:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self.log = log

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.poll()

    def has_ended(self, within_s: float = 1.0) -> bool:
        """Whether it has ended, or does so in a moment: its connections close a little earlier."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_tail(self) -> str:
        """The end of its log, safe to print."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return printable(file.read().decode(errors="replace")).strip()

    def last_line(self) -> str:
        """The last line of its log."""
        return self.log_tail().rpartition("\n")[2]

    def death(self, when: str) -> CaptureError:
        """The error to raise when it is found dead."""
        status = self.exit_status
        how = f"by signal {-status}" if status is not None and status < 0 else f"with status {status}"
        return CaptureError(
            f"the server ended {how} {when}; the end of its log:\n{self.log_tail()}", f"The whole log is {self.log}."
        )


@contextmanager
def running_server(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Generator[Server]:
    """Starts a server in a session of its own; at the end of the block nothing that it started is left.

    Args:
        command: the program and its arguments.
        environment: added to ours.
        log: gets what it writes, as it writes it.

    Raises:
        CaptureError: it cannot be started.
        OutputError: the log cannot be written.
    """
    optional("psutil")  # before there is anything to end
    mark = uuid.uuid4().hex
    process: subprocess.Popen[bytes] | None = None
    try:
        with _open_log(log) as output:
            process = _started(command, {**os.environ, **environment, MARK: mark}, output)
            yield Server(process, log)
    finally:
        with _undisturbed():
            end_all(mark, process)
            if process is not None:
                process.wait()  # it has ended; nothing of it stays, not even a zombie


def _open_log(log: Path) -> Any:
    try:
        return log.open("wb")
    except OSError as error:
        raise OutputError(f"{log} cannot be written: {error.strerror}", "Use another folder.") from error


def _started(command: Sequence[str], environment: Mapping[str, str], output: Any) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(  # noqa: S603 - the command is the user's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise CaptureError(
            f"{command[0]} cannot be started: {error.strerror}", "Give the command as in a shell, after --."
        ) from error


def marked(mark: str) -> list[Any]:
    """The living processes (psutil's) of a capture."""
    psutil = optional("psutil")
    found: list[Any] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_all(mark: str, leader: "subprocess.Popen[bytes] | None" = None) -> None:
    """Ends all processes of a capture: asked to first, killed after a while.

    Args:
        mark: of the capture.
        leader: the process that was started.

    Raises:
        CaptureError: some cannot be ended.
    """
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + GRACE_S
        told: set[int] = set()
        while time.monotonic() < until:
            processes = _living(mark, leader)
            if not processes:
                return
            for process in processes:
                if process.pid not in told:
                    told.add(process.pid)
                    _signal(process, signal_number)
            optional("psutil").wait_procs(processes, timeout=0.2)
    left = ", ".join(str(process.pid) for process in marked(mark))
    if left:
        raise CaptureError(f"processes of the server cannot be ended: {left}", "End them by hand.")


def _living(mark: str, leader: "subprocess.Popen[bytes] | None") -> list[Any]:
    """The living processes of a capture; none only if a second look finds none either.

    While a process turns into another program its environment cannot be read for a moment.
    """
    psutil = optional("psutil")
    found = marked(mark)
    if not found:
        time.sleep(SETTLE_S)
        found = marked(mark)
    if leader is not None and leader.poll() is None and leader.pid not in {process.pid for process in found}:
        with suppress(psutil.Error):
            found.append(psutil.Process(leader.pid))
    return found


def _signal(process: Any, number: int) -> None:
    with suppress(optional("psutil").Error, ProcessLookupError):
        process.send_signal(number)


@contextmanager
def _undisturbed() -> Generator[None]:
    """A second Ctrl-C does not stop the ending of processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ending_on_signals() -> Generator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that what it started is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), stop) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def wait_until_ready(
    server: Server, is_ready: Callable[[], bool], *, timeout_s: float, waiting: Callable[[str], None]
) -> None:
    """Returns when the server says that it is ready.

    Args:
        server: the process that is to become ready.
        is_ready: asks it.
        timeout_s: how long to wait.
        waiting: told what the wait is for, again and again.

    Raises:
        CaptureError: it ended, or is not ready in time.
    """
    begun = time.monotonic()
    while (waited_s := time.monotonic() - begun) < timeout_s:
        if server.exit_status is not None:
            raise server.death("while it started")
        if is_ready():
            return
        waiting(f"server starts, {waited_s:.0f} s: {server.last_line()[-100:]}")
        time.sleep(0.2)
    raise CaptureError(
        f"the server is not ready after {timeout_s:.0f} s; the end of its log:\n{server.log_tail()}",
        "A larger model may need more: --start-timeout SECONDS.",
    )


def refuse_used_port(host: str, port: int) -> None:
    """Raises where something listens there already: it would be taken for the server.

    Raises:
        CaptureError: the port is taken.
    """
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return
    raise CaptureError(
        f"port {port} is in use", "Give the server another --port, or attach to what runs there with --url."
    )
