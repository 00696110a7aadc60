"""A progress bar on standard error, for a person who waits."""

import contextlib
import sys
from collections.abc import Callable, Generator

from traceql.loading import Progress


@contextlib.contextmanager
def read_progress(what: str) -> Generator[Progress | None]:
    """A function to tell (bytes read, bytes in all or None); None where standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - costs as much as the whole help
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda n_read, n_bytes: bar.update(task, completed=n_read, total=n_bytes)


@contextlib.contextmanager
def count_progress(what: str, n_all: int) -> Generator[Callable[[str], None] | None]:
    """A function to tell what is begun next, of so many; None where standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - costs as much as the whole help
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=n_all, completed=-1)
        yield lambda name: bar.update(task, advance=1, description=f"{what} {name}")
