"""Where results go: standard output, or a file that appears whole or not at all."""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from traceql import fmt
from traceql.errors import OutputError, TraceqlError

if TYPE_CHECKING:
    import polars as pl

    from traceql.report.page import Section

PIPE_WIDTH = 100
"""Width of text that is not for a terminal, in cells."""

_HEIGHTS = dict(zip("▁▂▃▄▅▆▇█", ".:-=+*#@", strict=True))
_PLAIN = str.maketrans({"µ": "u", "—": "-", "−": "-", "…": "~", "×": "x", "→": ">", "·": "_"} | _HEIGHTS)


def check_output(output: Path | None, *, force: bool, is_binary: bool, source: Path) -> None:
    """Finds out before the work whether its result may be written.

    Raises:
        OutputError: the file exists, is the input or a folder, its folder is missing, or a terminal would get
            binary data.
    """
    if output is None:
        if is_binary and sys.stdout.isatty():
            raise OutputError("Parquet is binary and not for a terminal", "Name a file with -o FILE, or use a pipe.")
        return
    if output.is_dir():
        raise OutputError(f"{output} is a folder", "Name a file in it.")
    if not output.parent.is_dir():
        raise OutputError(f"{output.parent} is not a folder", "Create it first, or name another file.")
    if output.exists() and source.exists() and output.samefile(source):
        raise OutputError(f"{output} is the trace itself", "Name another file.")
    if output.is_file() and not force:
        raise OutputError(f"{output} exists", "Overwrite it with --force, or name another file.")


def formatted(
    form: str,
    *,
    to_file: bool,
    page: "Callable[[], list[Section]]",
    table: "Callable[[], pl.DataFrame]",
    document: Callable[[], bytes],
) -> bytes | str:
    """A result in the form asked for, of which only that form is made: page, table or (any other form) document.

    A page on a terminal has the terminal's width and, unless NO_COLOR is set, colour.
    """
    from traceql.report import frames, markdown, text  # noqa: PLC0415 - polars and rich: only when they are used

    if form == "csv":
        return frames.to_csv(table())
    if form == "parquet":
        return frames.to_parquet(table())
    if form == "markdown":
        return markdown.render_markdown(page())
    if form != "table":
        return document()
    is_terminal = not to_file and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else PIPE_WIDTH
    color = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return text.render_text(page(), width=width, color=color)


def write_page(page: "list[Section]") -> None:
    """Prints a page that has no other form."""
    import polars as pl  # noqa: PLC0415 - only when it is used

    write_output(formatted("table", to_file=False, page=lambda: page, table=pl.DataFrame, document=bytes), None)


def write_output(data: bytes | str, output: Path | None) -> None:
    """Writes the result to a file, or to standard output when there is none.

    Raises:
        OutputError: the file cannot be written. What stood there before is still there.
    """
    if output is None:
        _write_stdout(data)
        return
    write_blocks([data.encode() if isinstance(data, str) else data], output)


def write_blocks(blocks: Iterable[bytes], output: Path | None) -> int:
    """Writes bytes as they come, to a file or to standard output; how many they were.

    Raises:
        OutputError: the file cannot be written. What stood there before is still there, also when making the blocks
            fails.
    """
    if output is None:
        sys.stdout.flush()
        return _write_all(blocks, sys.stdout.buffer)
    try:
        return _write_file(blocks, output)
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {error.strerror}", "Name another file.") from error


def _write_all(blocks: Iterable[bytes], file: BinaryIO) -> int:
    n_bytes = 0
    for block in blocks:
        _write_whole(block, file)
        n_bytes += len(block)
    file.flush()
    return n_bytes


def _write_whole(data: bytes, file: BinaryIO) -> None:
    """Writes all of it: under PYTHONUNBUFFERED, as in many containers, a write to a pipe may end early unsaid."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _write_stdout(data: bytes | str) -> None:
    if isinstance(data, bytes):
        sys.stdout.flush()
        _write_whole(data, sys.stdout.buffer)
    else:
        sys.stdout.write(encodable(data, sys.stdout.encoding))
    sys.stdout.flush()


def say_error(error: TraceqlError) -> None:
    """Says the error and what to do, a line each, on standard error: names from a trace may be in it, made visible."""
    click.echo(f"error: {fmt.visible(error.message)}", err=True)
    if error.hint:
        click.echo(f"hint: {fmt.visible(error.hint)}", err=True)


def encodable(text: str, encoding: str | None) -> str:
    """The text itself, or with plain letters for the signs that the encoding lacks."""
    encoding = encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def _write_file(blocks: Iterable[bytes], output: Path) -> int:
    target = output.resolve()
    if target.exists() and not target.is_file():  # a device or a pipe: nothing to replace
        with target.open("wb") as file:
            return _write_all(blocks, file)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            n_bytes = _write_all(blocks, file)
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    return n_bytes
