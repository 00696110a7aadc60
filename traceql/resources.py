"""Finds the data folders `rules/` and `templates/`, in a checkout or in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def resource(*parts: str) -> Path:
    """The path of a file or folder below `rules/` or `templates/`, e.g. `resource("rules", "findings")`.

    Raises:
        FileNotFoundError: neither the wheel nor the checkout has it: the installation is broken.
    """
    for root in (_PACKAGE / "_resources", _PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"{'/'.join(parts)} is missing from this installation of traceql")
