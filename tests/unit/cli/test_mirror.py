"""`pylogd mirror`, as far as it needs no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pylogd.cli.main import pylogd

FILE = """
metadata.store = "/nowhere"
[cluster.a]
bootstrap.servers = "localhost:1"
[cluster.b]
bootstrap.servers = "localhost:2"
[[route]]
source = "a"
target = "b"
topics = ["x"]
rename = "a.{topic}"
[[route]]
source = "b"
target = "a"
topics = ["y"]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mirror.toml"
    path.write_text(FILE)
    return str(path)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(pylogd, ["mirror", *arguments])
    return done.exit_code, done.output


def test_a_file_is_checked(file: str) -> None:
    assert run("check", file, "--file-only", "--output", "tsv") == (0, "a-b\ta\tb\ta.{topic}\nb-a\tb\ta\t{topic}\n")


def test_mistakes_are_one_line(file: str) -> None:
    Path(file).write_text(FILE.replace("rename", "renaming"))
    code, said = run("check", file)
    assert code == 1 and "there is no 'renaming' here" in said
    code, said = run("run", file)
    assert code == 1 and "there is no 'renaming' here" in said and "Traceback" not in said


def test_of_several_routes_one_has_to_be_named(file: str) -> None:
    code, said = run("translate", file, "a-group")
    assert code == 2 and "--route has to be one of: a-b, b-a" in said
    code, said = run("describe", file, "--route", "other")
    assert code == 2 and "a-b, b-a" in said


def test_the_text_of_the_help_names_every_command() -> None:
    code, said = run("--help")
    assert code == 0
    for command in ("check", "run", "describe", "translate"):
        assert f"pylogd mirror {command} mirror.toml" in said
