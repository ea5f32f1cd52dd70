"""The notebooks run from top to bottom and print what they show."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted((_ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells[1:]), "run it before it is committed"
    program = "\n\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run([sys.executable, "-c", program], cwd=path.parent, text=True, capture_output=True, timeout=300,
                          env=os.environ | {"MPLBACKEND": "agg"})
    assert done.returncode == 0, done.stderr
    shown = "".join("".join(output["text"]) for cell in cells for output in cell["outputs"]
                    if output["output_type"] == "stream")
    assert shown and done.stdout.split() == shown.split()
