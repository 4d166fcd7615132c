"""Results in each format: the same fields everywhere, and nothing that a terminal would obey."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pylogd.cli.main import pylogd
from pylogd.cli.output import FORMATS, output_option, print_document, print_records, print_table
from pylogd.cli.tables import layout

HOSTILE = "[/x]\x1b]0;title\x07\u202e\u2028\nend"


class Level(IntEnum):
    """A number with a name, as error codes are."""

    HIGH = 3


RECORDS: list[dict[str, Any]] = [
    {"topic": "events", "partition": 0, "bytes": 2048, "replicas": (1, 2), "rack": None, "live": True, "extra": [1]},
    {
        "topic": HOSTILE,
        "partition": 12345,
        "bytes": 0,
        "replicas": [],
        "rack": "",
        "live": False,
        "extra": [Level.HIGH],
    },
]
COLUMNS = ["topic", ">partition", ">bytes", "replicas", "rack", "live"]


@click.command()
@output_option
def command() -> None:
    """Print records."""
    print_records(COLUMNS, RECORDS, {"bytes": lambda value: f"{value // 1024} KiB"})


def run(*arguments: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner(env=env).invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_json_and_yaml_have_all_fields_and_values() -> None:
    expected = json.loads(json.dumps(RECORDS))
    assert json.loads(run("--output", "json")) == expected
    assert run("--json") == run("--output", "json")
    assert yaml.safe_load(run("--output", "yaml")) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_no_format_lets_names_control_the_terminal(form: str) -> None:
    output = run("--output", form)
    assert not set(output) & {"\x1b", "\x07", "\u202e", "\u2028"}
    assert "title" in output


def test_a_table_has_a_heading_and_values_for_people() -> None:
    heading, first, second = run().splitlines()
    assert heading.split() == ["topic", "partition", "bytes", "replicas", "rack", "live"]
    assert first.split() == ["events", "0", "2", "KiB", "1,2", "-", "yes"]
    assert second.split()[-5:] == ["0", "KiB", "-", "-", "no"]
    assert "12345" in second, "numbers have no thousands separators"
    assert first.index(" 0 ") + 1 == second.index("12345") + 4, "numbers are aligned to the right"


def test_tsv_has_the_values_without_a_heading() -> None:
    assert run("--output", "tsv").splitlines()[0] == "events\t0\t2048\t1,2\t-\tyes"


def test_the_environment_chooses_the_format_and_options_replace_it() -> None:
    assert run(env={"PYLOGD_OUTPUT": "tsv"}).startswith("events\t")
    assert json.loads(run("--json", env={"PYLOGD_OUTPUT": "tsv"}))
    assert run("--output", "tsv", env={"PYLOGD_OUTPUT": "json"}).startswith("events\t")
    assert CliRunner().invoke(command, ["--output", "xml"]).exit_code == 2


def test_records_as_lines_of_json() -> None:
    @click.command()
    @output_option
    def lines() -> None:
        print_records(["a"], [{"a": 1}, {"a": 2}], lines=True)

    found = CliRunner().invoke(lines, ["--json"]).output.splitlines()
    assert [json.loads(line) for line in found] == [{"a": 1}, {"a": 2}]


def test_a_document_is_printed_as_json_and_yaml_only() -> None:
    @click.command()
    @output_option
    def document() -> None:
        click.echo(f"printed: {print_document({'a': 1})}")

    outputs = {form: CliRunner().invoke(document, ["--output", form]).output for form in FORMATS}
    assert outputs == {
        "table": "printed: False\n",
        "tsv": "printed: False\n",
        "json": '{\n  "a": 1\n}\nprinted: True\n',
        "yaml": "a: 1\nprinted: True\n",
    }


def test_a_table_without_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", ">b"], [])
    assert capsys.readouterr().out == "a  b\n"


CELLS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=120)


def test_columns_come_closer_before_cells_are_broken() -> None:
    columns, rows = ["broker", ">should_lead", "address"], [("1", "12", "localhost:9092")]
    wide = layout(columns, rows, 35)
    assert wide == ["broker  should_lead  address", "1                12  localhost:9092"]
    assert layout(columns, rows, 34) == ["broker should_lead address", "1               12 localhost:9092"]


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=6), st.integers(24, 200))
def test_a_table_fits_and_loses_nothing(rows: Sequence[tuple[str, str, str]], width: int) -> None:
    from rich.cells import cell_len  # noqa: PLC0415

    lines = layout(["one", ">two", "three"], rows, width)
    assert all(cell_len(line) <= width for line in lines)
    kept = "".join("".join(lines[1:]).split())
    assert sorted(kept) == sorted("".join("".join("".join(row) for row in rows).split()))


def test_a_table_in_a_pipe_breaks_no_cell() -> None:
    lines = layout(["name", ">n"], [("x" * 300, "1")])
    assert lines == [f"{'name':300}  n", f"{'x' * 300}  1"]


def leaves(name: str, found: click.Command) -> list[tuple[str, click.Command]]:
    """Return the commands below a command, by their full names, groups included."""
    if not isinstance(found, click.Group):
        return [(name, found)]
    ctx = click.Context(found)
    below = [(f"{name} {each}".strip(), found.get_command(ctx, each)) for each in found.list_commands(ctx)]
    return [(name, found), *(leaf for one, each in below if each is not None for leaf in leaves(one, each))]


ALL = leaves("", pylogd)


@pytest.mark.parametrize(("name", "found"), ALL, ids=[name for name, _ in ALL])
def test_help_fits_into_80_columns(name: str, found: click.Command) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(pylogd, [*name.split(), "--help"])
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if len(line) > 80] == []


def test_every_command_with_json_has_all_formats() -> None:
    for name, found in ALL:
        options = {option for each in found.params for option in each.opts}
        assert ("--json" in options) == ("--output" in options), name
