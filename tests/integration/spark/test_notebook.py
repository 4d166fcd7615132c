"""The notebook of `examples/`, run from its first cell to its last in Jupyter's kernel against a real broker."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.integration.conftest import Address
from tests.sparks import python_environment, retried

pytestmark = pytest.mark.timeout(600)
NOTEBOOK = Path(__file__).resolve().parents[3] / "examples" / "departures.ipynb"
CELL_SECONDS = 240
DEPARTURES = 3300


def outputs(notebook: Any, kind: str) -> list[str]:
    """Return what cells show of a kind, such as `text/plain`; `stream` is what they print."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if kind == "stream" and output.output_type == "stream" and output.name == "stdout":
                found.append(output.text)
            elif kind in output.get("data", {}):
                found.append(output.data[kind])
    return found


def test_the_notebook_loads_counts_and_draws(broker: Address, tmp_path: Path) -> None:
    environment = {**python_environment(), "PYLOGD_BOOTSTRAP_SERVER": broker.address, "TMPDIR": str(tmp_path)}
    environment["IPYTHONDIR"] = str(tmp_path / "ipython")

    def run() -> Any:
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        client = NotebookClient(notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(tmp_path)}})
        return client.execute(env={**os.environ, **environment})

    notebook = retried(run)
    printed = "".join(outputs(notebook, "stream"))
    assert f"{DEPARTURES} rows in " in printed
    assert "again: None" in printed
    assert "table and stream agree: True" in printed
    assert str(DEPARTURES) in outputs(notebook, "text/plain")
    tables = outputs(notebook, "text/html")
    assert len(tables) == 2 and all("EWR" in table and "LGA" in table for table in tables)
    (picture,) = outputs(notebook, "image/png")
    assert base64.b64decode(picture).startswith(b"\x89PNG")


def test_the_notebook_is_kept_without_results() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)
