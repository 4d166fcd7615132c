"""Texts of commands: their examples are valid, and what docs/commands.md names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pylogd.cli.client_file import read_client_file
from pylogd.cli.main import pylogd
from tests.conftest import CHECKOUT
from tests.docs.kinds import blocks_of_kind
from tests.tools import tool

PAGE = CHECKOUT / "docs/commands.md"
TOOL = tool("generate_commands_doc")
#: What stands for files that a reader has.
MISSING = re.compile(r"does not exist|No such file|can't read")


def examples() -> Iterator[tuple[str, str]]:
    """Yield the examples of all commands: the command's name, and a line."""
    for name, command in [("pylogd", pylogd), *TOOL.commands(pylogd, "pylogd")]:
        for block in re.findall(r"\x08\n(.*?)(?:\n\n|\Z)", command.help or "", re.DOTALL):
            for line in re.sub(r'eval "\$\((.*)\)"', r"\1", block.replace("\\\n", " ")).splitlines():
                yield from ((name, each.strip()) for each in re.split(r"&&|\|(?![^']*')", line) if "pylogd " in each)


EXAMPLES = list(examples())


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_is_a_command_with_options_that_it_has(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYLOGD_CLIENT_FILE", raising=False)
    words = shlex.split(
        re.sub(r"\s+[<>].*|\s#.*", "", re.sub(r"(?<=\S)\s{2,}(?=[^-\s]).*", "", line[line.index("pylogd ") :]))
    )
    command: click.Command = pylogd
    rest = words[1:]
    ctx = click.Context(command, info_name="pylogd")
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(ctx, rest[0])
        if found is None and name.startswith("pylogd audit"):  # `audit TOPIC` is `audit check TOPIC`
            found, rest = command.get_command(ctx, "check"), ["check", *rest]
        assert found is not None, f"{line}: there is no {rest[0]}"
        command, rest = found, rest[1:]
    if isinstance(command, click.Group):
        return
    try:
        command.make_context("example", [word for word in rest if word != "..."])
    except click.UsageError as error:
        if not MISSING.search(error.format_message()) and "no profile" not in error.format_message():
            raise


def test_there_are_examples_for_most_commands() -> None:
    groups = [name for name, command in TOOL.commands(pylogd, "pylogd") if isinstance(command, click.Group)]
    without = {name for name in groups if not any(line.startswith(name) for _, line in EXAMPLES)}
    assert without == set()
    assert len(EXAMPLES) > 100


def test_the_commands_that_are_compared_exist() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ") and line.count("|") == 5]
    table: list[str] = [row.split(" | ")[1] for row in rows if "rpk |" not in row]
    assert len(table) > 30
    known = {name.removeprefix("pylogd ") for name, _ in TOOL.commands(pylogd, "pylogd")}
    for cell in table:
        group = ""
        for text in re.findall(r"`([^`]+)`", cell):
            words = [word for word in text.split() if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
            if not words:
                continue  # an option
            name = " ".join(words[:2])
            group = group or words[0]
            assert name in known or words[0] in known or f"{group} {words[0]}" in known, f"{cell}: {text}"


def test_the_client_file_of_the_page_can_be_read(tmp_path: Path) -> None:
    [block] = blocks_of_kind("commands", "toml")
    path = tmp_path / "client.toml"
    path.write_text(block.text)
    (tmp_path / "production.properties").write_text("ssl.truststore.location=/ca.pem\n")
    found = read_client_file(path)
    assert found.profile() == found.profile("local")
    production = found.profile("production")
    assert production is not None and production.timeout == 20 and production.output == "json"
    assert production.properties == {"ssl.truststore.location": "/ca.pem", "security.protocol": "SASL_SSL"}
