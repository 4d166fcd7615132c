"""`--command-config`: a file of Kafka's properties configures how the commands connect."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pylogd.cli.common import bootstrap_option, connect, kafka_options, security
from pylogd.cli.main import pylogd
from pylogd.client.core.security import SecurityOptions

FILE = """security.protocol=SASL_SSL
client.id=ignored
ssl.truststore.location=/ca.pem
sasl.mechanism=PLAIN
sasl.jaas.config=some.PlainLoginModule required username="alice" password="s3cret";
"""
EXPECTED = SecurityOptions(
    protocol="SASL_SSL", ssl_ca="/ca.pem", sasl_mechanism="PLAIN", sasl_username="alice", sasl_password="s3cret"
)


@click.group()
def group() -> None:
    """Create a command group for commands that connect."""


@group.command()
@bootstrap_option
def try_it(bootstrap: str) -> None:
    """Print the options without connecting."""
    with connect(bootstrap) as cluster:
        assert cluster.options.security == security()
    click.echo(f"{security()!r} {sorted(kafka_options())}")


def test_the_file_is_for_all_connections(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    done = CliRunner().invoke(group, ["try-it", "--command-config", str(path)], catch_exceptions=False)
    names = ["sasl.jaas.config", "sasl.mechanism", "security.protocol", "ssl.truststore.location"]
    assert done.output == f"{EXPECTED!r} {[f'kafka.{name}' for name in names]}\n"
    assert "s3cret" not in done.output
    from_environment = CliRunner().invoke(group, ["try-it"], env={"PYLOGD_COMMAND_CONFIG": str(path)})
    assert from_environment.output == done.output


def test_without_a_file_nothing_is_secured() -> None:
    assert CliRunner().invoke(group, ["try-it"], catch_exceptions=False).output == "None []\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "No such file"),
        ("ssl.truststore.type=JKS\nsecurity.protocol=SSL\n", "ssl.truststore.type: only PEM"),
        (FILE.replace('";', ""), "sasl.jaas.config"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | None, error: str) -> None:
    path = tmp_path / "client.properties"
    if text is not None:
        path.write_text(text)
    done = CliRunner().invoke(group, ["try-it", "--command-config", str(path)])
    assert done.exit_code == 2 and error in done.output and "s3cret" not in done.output


def commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        found = [(each, command.get_command(context, each)) for each in command.list_commands(context)]
        below = [pair for each, child in found if child is not None for pair in commands(child, f"{name} {each}")]
        return [(name, command), *below]
    return [(name, command)]


def test_every_command_that_connects_has_the_option() -> None:
    options = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in commands(pylogd, "pylogd")
    }
    connecting = {name for name, found in options.items() if found & {"--bootstrap-server", "--schema-registry"}}
    assert len(connecting) > 20
    assert connecting == {name for name, found in options.items() if "--command-config" in found}
