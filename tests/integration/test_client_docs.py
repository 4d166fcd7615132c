"""docs/client.md: its programs print what it says, and its options are the library's."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pylogd import client
from pylogd.client import deferred
from tests.integration.conftest import Address

TEXT = Path(__file__).resolve().parents[2].joinpath("docs", "client.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ONLY_BLOCKING = {"prefetch"}
ONLY_DEFERRED = {"tls", "reactor"}


def test_every_program_is_run() -> None:
    assert len(PROGRAMS) == TEXT.count("```python") >= 4


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_a_program(broker: Address, program: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program.replace("localhost:9092", broker.address)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_options(name: str) -> None:
    section = TEXT[TEXT.index(f"\n### {name}\n") :].split("\n### ")[1]
    documented = {
        row[0]: ast.literal_eval(row[1])
        for row in re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", section, re.MULTILINE)
    }
    for face, missing in ((client, ONLY_DEFERRED), (deferred, ONLY_BLOCKING)):
        options = _options(getattr(face, name))
        expected = {option: value for option, value in documented.items() if option not in missing}
        assert options == expected


def _options(cls: Any) -> dict[str, Any]:
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
