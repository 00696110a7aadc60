"""The options that all commands on a trace share, and what they ask for, as one object that a command is given."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceql.cli.loading import check_run_output, load_traces
from traceql.cli.options import (
    FORMATS,
    Decorator,
    combine,
    load_options,
    output_form,
    output_options,
    rank_option,
    run_argument,
    step_options,
)
from traceql.cli.output import formatted, write_output
from traceql.loading import Loading

if TYPE_CHECKING:
    import polars as pl

    from traceql.analyses.summary import Selection
    from traceql.report.page import Section
    from traceql.trace import Trace


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """Which traces, and which of their steps, the shared options ask for."""

    traces: tuple[Path, ...]
    steps: tuple[int | None, int | None]
    stage: str | None
    ranks: tuple[int, ...]
    loading: Loading

    def selection(self) -> "Selection":
        """The steps asked for."""
        from traceql.analyses.summary import Selection  # noqa: PLC0415 - polars: only when it is used

        return Selection(*self.steps, self.stage)

    def trace(self) -> "Trace":
        """The trace or run, read with progress on a terminal."""
        return load_traces(self.traces, self.ranks, self.loading)


@dataclass(frozen=True, kw_only=True)
class Request(TraceRequest):
    """What the shared options ask for, with the form of one result and where it goes."""

    form: str
    """The format asked for, else the one that the output's name implies, else `table`."""
    output: Path | None

    @property
    def is_data(self) -> bool:
        """Whether the form holds one table whole."""
        return self.form in ("csv", "parquet")

    def check_output(self, *others: Path | None) -> None:
        """Finds out before the work whether its result may be written; no trace, nor any of `others`, is overwritten.

        Raises:
            OutputError: as `check_run_output`.
        """
        sources = [*self.traces, *(path for path in others if path)]
        check_run_output(self.output, sources, force=self.loading.force, is_binary=self.form == "parquet")

    def other_trace(self, path: Path | None) -> "Trace | None":
        """Another trace, read in the same way; None for none."""
        return load_traces([path], (), self.loading) if path else None

    def write(
        self,
        *,
        page: "Callable[[], list[Section]]",
        table: "Callable[[], pl.DataFrame]",
        document: Callable[[], bytes],
    ) -> None:
        """Makes the result in the form asked for and puts it where it is to go."""
        result = formatted(
            self.form, to_file=self.output is not None, page=page, table=table, document=document
        )  # fmt: skip
        write_output(result, self.output)


def takes_request(
    formats: Mapping[str, str | None] = FORMATS, *, has_ranks: bool = True, needs_trace: bool = True
) -> Decorator:
    """Gives a command the shared options, and their `Request` as its first argument.

    It stands below the command's own options, so that help lists those first.

    Args:
        formats: forms of output, and the suffix that implies each.
        has_ranks: whether single ranks of a run can be asked for.
        needs_trace: whether no trace at all is refused here; else the command has to.
    """

    def formed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(asked: TraceRequest, *, form: str | None, output: Path | None, **own: Any) -> Any:
            request = Request(**vars(asked), form=output_form(form, output, formats), output=output)
            return function(request, **own)

        return command

    shared = (
        run_argument(required=needs_trace),
        step_options,
        *([rank_option] if has_ranks else []),
        output_options(formats),
        load_options,
    )
    return combine(*shared, _asked, formed)


def takes_traces(force_help: str) -> Decorator:
    """Gives a command the options on traces and steps alone, and their `TraceRequest` as its first argument.

    Args:
        force_help: what --force does in it.
    """
    force = click.option("--force", is_flag=True, help=force_help)
    return combine(run_argument(), step_options, rank_option, force, load_options, _asked)


def _asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a `TraceRequest` in place of the options on traces, their reading and their steps."""

    @functools.wraps(function)
    def command(
        *,
        traces: tuple[Path, ...],
        steps: tuple[int | None, int | None],
        stage: str | None,
        force: bool,
        categories: Path | None,
        no_cache: bool,
        strict: bool,
        ranks: tuple[int, ...] = (),
        **own: Any,
    ) -> Any:
        loading = Loading(force, categories, not no_cache, strict)
        return function(TraceRequest(traces=traces, steps=steps, stage=stage, ranks=ranks, loading=loading), **own)

    return command
