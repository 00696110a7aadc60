"""`traceql cache`: what the columnar cache holds, and how to empty it."""

import click

from traceql import fmt


@click.group("cache", epilog="Example: traceql cache clear")
def command() -> None:
    """The columnar cache of traces already read.

    The second command on a trace reads it from there. An entry is used only while the trace's path, size and
    time are what they were.
    """


@command.command("info", epilog="Example: traceql cache info")
def show() -> None:
    """Prints where the cache is and what it holds, the last used first."""
    from traceql.ingest import cache  # noqa: PLC0415

    entries = cache.info()
    click.echo(f"{cache.cache_dir()}: {_amount(len(entries), sum(entry.n_bytes for entry in entries))}")
    for entry in entries:
        used = f"{entry.last_used:%Y-%m-%d %H:%M}"
        click.echo(f"{fmt.size(entry.n_bytes):>8}  used {used}  {fmt.visible(entry.trace or '(damaged)')}")


@command.command("clear", epilog="Example: traceql cache clear")
def clear() -> None:
    """Removes every entry."""
    from traceql.ingest import cache  # noqa: PLC0415

    removed = cache.clear()
    click.echo(f"removed {_amount(removed.n_entries, removed.n_bytes)}")


def _amount(n_entries: int, n_bytes: int) -> str:
    return f"{fmt.plural(n_entries, 'trace')}, {fmt.size(n_bytes)}"
