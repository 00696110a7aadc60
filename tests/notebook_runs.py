"""Runs the notebooks: `python tests/notebook_runs.py` writes their outputs, without what differs from run to run.

With `--check` nothing is written, and those whose text is another now are named.
"""

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with what its cells give now.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    return cleaned(notebook)


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without times, versions and ids of its run."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = nbformat.from_dict({})
    return notebook


def texts(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """What each cell shows, as text; a picture only by its kind, since libraries draw it in other bytes."""
    return [[_text(output) for output in cell.get("outputs", [])] for cell in notebook.cells]


def _text(output: Any) -> str:
    if "text" in output:
        return output["text"]
    data = output.get("data", {})
    return "picture" if "image/png" in data else data.get("text/plain", output["output_type"])


def main() -> int:
    """Runs all notebooks, and writes or compares them."""
    lagging: list[str] = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        fresh = executed(path)
        if "--check" not in sys.argv[1:]:
            nbformat.write(fresh, path)
        elif texts(fresh) != texts(nbformat.read(path, as_version=4)):
            lagging.append(path.name)
    print(*lagging, sep="\n", end="\n" if lagging else "")
    return len(lagging)


if __name__ == "__main__":
    sys.exit(main())
