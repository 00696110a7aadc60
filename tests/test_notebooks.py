"""The notebooks: what they show is what they give, and nothing of the machine they ran on."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert len(NOTEBOOKS) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_clean(path):
    text = path.read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert not re.search(r"/(?:tmp|home|root|Users|usr|opt|mnt|var)/", re.sub(r'"image/png": ".*?"', "", text))
    notebook = json.loads(text)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        kinds = {output["output_type"] for output in cell.get("outputs", [])}
        assert kinds <= {"stream", "execute_result", "display_data"}
        assert all(output.get("name") != "stderr" for output in cell.get("outputs", []))


@pytest.mark.slow
def test_outputs_are_those_of_a_fresh_run():
    command = [sys.executable, str(Path(__file__).with_name("notebook_runs.py")), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), f"run: make notebooks\n{done.stderr}"
