"""Arguments and options that several commands share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from traceql.units import parse_duration

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FORMATS: Mapping[str, str | None] = {
    "table": None, "json": ".json", "csv": ".csv", "parquet": ".parquet", "markdown": ".md",
}  # fmt: skip
"""Forms of output, and the suffix of a file's name that implies each."""


class StepRange(click.ParamType[tuple[int | None, int | None]]):
    """`A:B`, a half-open range of step numbers; either end may be left out, and `A` alone is one step."""

    name = "A:B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """(first, end), None where left out."""
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType] - a default, already converted
        first_text, colon, end_text = str(value).partition(":")
        try:
            first = _step_number(first_text) if first_text or not colon else None
            end = _step_number(end_text) if end_text else None
        except ValueError:
            self.fail(f"{value!r} is not a range of step numbers such as 5:10, 5: or :10", param, ctx)
        if not colon:
            end = None if first is None else first + 1
        if first is not None and end is not None and first >= end:
            self.fail(f"{value!r} is empty: the first step must be below the end", param, ctx)
        return first, end


def _step_number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


class Duration(click.ParamType[int]):
    """A length of time such as `12.5ms`, as nanoseconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The nanoseconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TimeRange(click.ParamType[tuple[int | None, int | None]]):
    """`A:B`, a stretch of time such as `10ms:12.5ms`; either end may be left out."""

    name = "A:B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """(from, to) in ns, None where left out."""
        start_text, colon, end_text = str(value).partition(":")
        try:
            start = parse_duration(start_text) if start_text else None
            end = parse_duration(end_text) if end_text else None
        except ValueError as error:
            self.fail(f"{error}; a stretch is 10ms:20ms, 10ms: or :20ms", param, ctx)
        if not colon or (start is None and end is None):
            self.fail(f"{value!r} is not a stretch of time such as 10ms:20ms, 10ms: or :20ms", param, ctx)
        if start is not None and end is not None and start >= end:
            self.fail(f"{value!r} is empty: it must end after its begin", param, ctx)
        return start, end


class Percent(click.ParamType[float]):
    """A percentage such as `1%` or `0.5`."""

    name = "PCT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As a share."""
        text = str(value).strip().removesuffix("%").strip()
        try:
            share = float(text) / 100
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            self.fail(f"{value!r} is not a percentage from 0 to 100", param, ctx)
        return share


def combine(*decorators: Decorator) -> Decorator:
    """One decorator that applies all, the first being the first in the help."""

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def run_argument(*, required: bool = True) -> Decorator:
    """The files, folders and patterns of a run, as `traceql.run.load_run` takes them."""
    return click.argument(
        "traces", nargs=-1, required=required, metavar="TRACE...", type=click.Path(path_type=Path, allow_dash=True)
    )


rank_option = click.option(
    "--rank", "ranks", type=click.IntRange(min=0), multiple=True, metavar="N",
    help="Only this rank of a run; may be given several times.",
)  # fmt: skip

capture_option = click.option(
    "--capture-trace", "capture", type=click.Path(path_type=Path), metavar="FILE",
    help="Trace of the phase in which the CUDA graphs of TRACE were captured.",
)  # fmt: skip

step_options = combine(
    click.option("--steps", type=StepRange(), default=(None, None), metavar="A:B",
                 help="Only steps A to B - 1; A: and :B leave one end open."),
    click.option("--stage", type=click.Choice(["decode", "prefill", "mixed"]),
                 help="Only steps of this stage."),
)  # fmt: skip

load_options = combine(
    click.option("--categories", type=click.Path(path_type=Path), metavar="FILE",
                 help="Kernel categories of your own (YAML); they go before the built-in ones."),
    click.option("--no-cache", is_flag=True, help="Read the trace itself, and leave nothing in the cache."),
    click.option("--strict", is_flag=True, help="Refuse a trace that cannot be read without loss."),
)  # fmt: skip


def output_options(formats: Mapping[str, str | None] = FORMATS) -> Decorator:
    """--format of these, --output and --force."""
    return combine(
        click.option("--format", "form", type=click.Choice(list(formats)),
                     help="Form of the output. [default: by the name of FILE, else table]"),
        click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
                     help="Write to FILE instead of standard output."),
        click.option("--force", is_flag=True, help="Overwrite FILE; take files of different jobs together."),
    )  # fmt: skip


def output_form(form: str | None, output: Path | None, formats: Mapping[str, str | None] = FORMATS) -> str:
    """The format asked for, else the one that the output's name implies, else `table`."""
    if form is not None or output is None:
        return form or "table"
    return next((name for name, suffix in formats.items() if suffix == output.suffix.lower()), "table")
