"""The options of typed tables: what they make, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pylogd.cli.common import bootstrap_option
from pylogd.cli.load import schema_options, schema_source


@click.command()
@bootstrap_option
@schema_options
def command(bootstrap: str, **given: Any) -> None:
    """Print the source."""
    source = schema_source(given)
    if source is None:
        click.echo("none")
        return
    assert "secret" not in repr(source)
    click.echo(f"{source.registry.url} {source.registry.settings} {source.subject_of('t')} {source.message!r}")


def ran(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(command, arguments)
    return found.exit_code, found.output


def test_without_a_registry_the_table_is_one_of_records() -> None:
    assert ran() == (0, "none\n")


def test_the_subject_is_that_of_the_topic_or_a_given_one() -> None:
    registry = "http://registry:8081 ()"
    assert ran("--schema-registry", "http://registry:8081") == (0, f"{registry} t-value ''\n")
    given = ("--schema-registry", "http://registry:8081", "--subject", "s", "--message", "a.M")
    assert ran(*given) == (0, f"{registry} s 'a.M'\n")


def test_credentials_come_from_the_properties(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("schema.registry.basic.auth.user.info=ada:secret\nsecurity.protocol=PLAINTEXT\n")
    code, said = ran("--schema-registry", "https://registry", "--command-config", str(config))
    assert code == 0
    assert "(('schema.registry.basic.auth.user.info', 'ada:secret'),)" in said
    config.write_text("schema.registry.made.up=1\n")
    code, said = ran("--schema-registry", "https://registry", "--command-config", str(config))
    assert code == 2
    assert "no setting 'made.up'" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--subject", "s"), "need --schema-registry"),
        (("--message", "M"), "need --schema-registry"),
        (("--schema-registry", "registry:8081"), "must begin with http"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], why: str) -> None:
    code, said = ran(*arguments)
    assert code == 2
    assert why in said
