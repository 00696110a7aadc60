"""The command `traceql`. A command's module is imported when it is run, so that help comes at once."""

import gc
import importlib
import os
import sys
from typing import Any

import click

from traceql import __version__
from traceql.cli.output import say_error
from traceql.errors import TraceqlError

COMMANDS = {
    "summarize": "Where the time of each step goes.",
    "diff": "What changed between two recordings, whether it is real, and why.",
    "report": "One page for the browser, offline: steps, layers, kernels, casts, idle time and findings.",
    "layers": "Which layers take the time of a step, and the kernels of one layer.",
    "casts": "What dtype casts and copies cost, and whether one converts a whole KV pool.",
    "check": "What is wrong in a trace, what it costs and what to do, by rules.",
    "idle": "Why the GPU was idle, and whether it waits for the host.",
    "whatif": "What steps would take with a fix: a replay with other costs.",
    "critical-path": "What makes a step as long as it is: its critical path.",
    "slice": "A window of a trace as a small trace of its own, for the viewer or a colleague.",
    "merge": "The ranks of a run as one trace on one clock, for the viewer.",
    "query": "A question in SQL, about a trace's tables and every result, or a store.",
    "shell": "A prompt for such questions, with completion and history.",
    "ingest": "Many traces into a store, to be asked and compared as one.",
    "trend": "Step times by run, commit or date, and which changes are real.",
    "tables": "The tables and columns that a query can name.",
    "export": "Every table as Parquet, CSV or Arrow files, with their schema.",
    "ranks": "The ranks of a run side by side: who waits, for whom and why.",
    "baseline": "Recordings kept to compare later ones with.",
    "capture": "Make traces of an SGLang server, patched or not, with its pace without profiler.",
    "rules": "The rules of check: list, show, test, and begin a new one.",
    "cache": "The columnar cache of traces already read.",
}
"""Command name, which is also its module in this folder (with _ for -), and what it does."""

INTERRUPTED = 128 + 2
"""Exit status after Ctrl-C, as shells report SIGINT."""
BROKEN_PIPE = 128 + 13
"""Exit status when the reader of a pipe has gone, as shells report SIGPIPE."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, and which turns errors into lines on stderr."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names of the commands, in order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now; None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"traceql.cli.{cmd_name.replace('-', '_')}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; what is the input's or the user's fault ends in a line and an exit status."""
        gc.disable()  # the process is short, and imports and frames make no garbage in cycles: a tenth of the time
        try:
            return super().invoke(ctx)
        except TraceqlError as error:
            say_error(error)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # What is left in the buffer would raise again when Python closes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(BROKEN_PIPE)
        except OSError as error:  # what no command foresaw: a path too long for the system, a disk that is full
            name = f": {str(error.filename)[:200]}" if error.filename is not None else ""
            say_error(TraceqlError(f"{error.strerror or error}{name}"))
            ctx.exit(2)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: traceql summarize trace.json.gz",
)
@click.version_option(__version__, prog_name="traceql")
def main() -> None:
    """Where each decode step's milliseconds go, from a torch.profiler trace of LLM serving."""
