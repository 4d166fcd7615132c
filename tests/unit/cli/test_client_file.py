"""The client file: profiles, what they replace, and what is wrong with a file."""

from __future__ import annotations

import json
import pwd
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from pylogd.cli.client_file import ClientFileError, hide, read_client_file
from pylogd.cli.common import bootstrap_option, connect, security
from pylogd.cli.main import pylogd
from pylogd.cli.output import output_format

FILE = """
profile = "local"

[profiles.local]
bootstrap-server = "local:1"

[profiles.production]
bootstrap-server = "kafka1:2,kafka2:2"
properties-file = "kafka.properties"
timeout = 20
output = "json"
schema-registry = "https://registry:8081"

[profiles.production.properties]
"sasl.jaas.config" = 'some.PlainLoginModule required username="alice" password="s3cret";'
"""
PROPERTIES = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nbootstrap.servers=in-the-file:3\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "kafka.properties").write_text(PROPERTIES)
    path = tmp_path / "client.toml"
    path.write_text(FILE)
    return path


@click.group()
def group() -> None:
    """Create a command group for a command that connects."""


@group.command()
@bootstrap_option
def try_it(bootstrap: str) -> None:
    """Print what the command would use."""
    secured = security()
    with connect(bootstrap) as cluster:
        patience = cluster.options.request_timeout
    click.echo(f"{bootstrap} {output_format()} {secured and secured.sasl_username} {patience:g}")


def run(path: Path, *arguments: str, **variables: str) -> Result:
    return CliRunner(env={"PYLOGD_CLIENT_FILE": str(path), **variables}).invoke(group, ["try-it", *arguments])


def test_the_profile_that_the_file_chooses(file: Path) -> None:
    assert run(file).output == "local:1 table None 30\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["--profile", "production"], {}, "kafka1:2,kafka2:2 json alice 20"),
        ([], {"PYLOGD_PROFILE": "production"}, "kafka1:2,kafka2:2 json alice 20"),
        (["--profile", "local"], {"PYLOGD_PROFILE": "production"}, "local:1 table None 30"),
        (["--profile", "production", "-b", "given:9"], {}, "given:9 json alice 20"),
        (["--profile", "production", "--timeout", "3"], {}, "kafka1:2,kafka2:2 json alice 3"),
        ([], {"PYLOGD_BOOTSTRAP_SERVER": "variable:9"}, "variable:9 table None 30"),
        (["--profile", "production"], {"PYLOGD_BOOTSTRAP_SERVER": "variable:9"}, "kafka1:2,kafka2:2 json alice 20"),
    ],
)
def test_what_comes_first(file: Path, arguments: list[str], variables: dict[str, str], expected: str) -> None:
    assert run(file, *arguments, **variables).output == f"{expected}\n"


def test_a_command_config_replaces_the_properties_of_a_profile(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.properties"
    other.write_text(PROPERTIES + 'sasl.jaas.config=a.PlainLoginModule required username="bob" password="x";\n')
    for arguments in (["--profile", "production", "--command-config", str(other)],
                      ["--command-config", str(other), "--profile", "production"]):  # fmt: skip
        assert " bob " in run(file, *arguments).output
    assert " bob " in run(file, PYLOGD_PROFILE="production", PYLOGD_COMMAND_CONFIG=str(other)).output.replace(
        " alice ", " bob "
    )


def test_one_of_kafkas_property_files_is_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text(PROPERTIES.replace("SASL_PLAINTEXT", "PLAINTEXT"))
    assert run(path).output == "in-the-file:3 table  30\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("profile = ", "is not TOML"),
        ("profiel = 'a'", "unknown key 'profiel'; did you mean profile"),
        ("[profiles.a]\nbootstrap-servers = 'x:1'", "did you mean bootstrap-server?"),
        ("[profiles.a]\ntimeout = 'soon'", "timeout has to be a number of seconds"),
        ("[profiles.a]\ntimeout = 0", "timeout has to be a number of seconds"),
        ("[profiles.a]\noutput = 'xml'", "output has to be one of table, json, yaml, tsv"),
        ("[profiles.a]\nbootstrap-server = 1", "bootstrap-server has to be text"),
        ("[profiles.a]\nproperties-file = 'none.properties'", "can't read"),
        ("[profiles.a]\nproperties = 'x'", "properties has to be a table"),
        ("[profiles.a.properties]\n'ssl.truststore.type' = 'PEM'", "set security.protocol too"),
        ("[profiles]\na = 1", "profiles has to be tables"),
        ("[profiles.aa]", "has no profile 'a': did you mean aa?"),
        ("profile = 1", "profile has to be the name of one"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "client.toml"
    path.write_text(text)
    result = run(path, "--profile", "a")
    assert result.exit_code == 2
    assert error in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_named_has_to_exist(tmp_path: Path) -> None:
    result = run(tmp_path / "none.toml")
    assert result.exit_code == 2 and "does not exist" in result.output


def test_without_a_file_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYLOGD_CLIENT_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = read_client_file()
    assert found.path == tmp_path / "pylogd" / "client.toml" and found.profile() is None
    with pytest.raises(ClientFileError, match="it has none"):
        found.profile("a")


def test_a_user_without_a_home_directory_has_no_client_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So it is with systemd's DynamicUser: there is no HOME, and platformdirs raises RuntimeError."""

    def unknown(_uid: int) -> object:
        raise KeyError("getpwuid(): uid not found")

    for name in ("PYLOGD_CLIENT_FILE", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    assert read_client_file().profile() is None


def test_the_commands_on_profiles(file: Path, tmp_path: Path) -> None:
    def call(*arguments: str, path: Path = file) -> Result:
        return CliRunner(env={"PYLOGD_CLIENT_FILE": str(path)}).invoke(pylogd, ["profiles", *arguments])

    assert [(one["profile"], one["used"]) for one in json.loads(call("list", "--json").output)] == [
        ("local", True), ("production", False),
    ]  # fmt: skip
    for form in ("json", "yaml", "table"):
        shown = call("show", "production", "--output", form).output
        assert "s3cret" not in shown and "SASL_PLAINTEXT" in shown and "[hidden]" in shown
    assert call("path").output == f"{file}\n"
    fresh = tmp_path / "fresh" / "client.toml"
    assert call("init", path=fresh).exit_code == 0
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o600
    assert "localhost:9092" in call("show", path=fresh).output
    again = call("init", path=fresh)
    assert again.exit_code == 1 and "exists already" in again.output


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("ssl.key.password", True),
        ("sasl.jaas.config", True),
        ("ssl.keystore.key", True),
        ("sasl.oauthbearer.client.credentials.client.secret", True),
        ("schema.registry.basic.auth.user.info", True),
        ("sasl.oauthbearer.token.endpoint.url", False),
        ("ssl.truststore.location", False),
        ("retention.ms", False),
    ],
)
def test_which_values_are_hidden(name: str, hidden: bool) -> None:
    assert (hide(name, "value") != "value") == hidden
