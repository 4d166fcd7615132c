"""The command as a whole: help, exit codes, and which modules are imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner, Result

from pylogd.cli.main import COMMANDS, LazyGroup, pylogd


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(pylogd, arguments, input=stdin)


def process(arguments: Sequence[str], code: str = "") -> subprocess.CompletedProcess[str]:
    program = code or "from pylogd.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=180, check=False
    )


def test_help_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, lazy in COMMANDS.items():
        assert name in result.output and lazy.help in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output
    group = pylogd
    assert isinstance(group, LazyGroup)
    command = group.get_command(click.Context(group), name)
    assert command is not None and command.help, "the line in the list is not all there is"


def test_help_is_quick_because_it_imports_nothing() -> None:
    listing = "import sys\nfrom pylogd.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    result = process([], listing + "print(*sorted(sys.modules), file=sys.stderr)")
    loaded = set(result.stderr.split())
    assert not loaded & {"twisted", "construct", "rich", "pylogd.client", "pylogd.wire.session", "cramjam"}


@pytest.mark.parametrize("arguments", [["nosuch"], ["topics", "create"], ["consume"], ["offsets", "--nosuch"]])
def test_wrong_usage(arguments: list[str]) -> None:
    result = process(arguments)
    assert result.returncode == 2
    assert "Usage:" in result.stderr and not result.stdout


def test_version() -> None:
    assert process(["--version"]).stdout.startswith("pylogd ")


@pytest.mark.parametrize(
    "arguments", [["topics", "list"], ["consume", "t"], ["offsets", "t"], ["cluster"], ["topics", "create", "t"]]
)
def test_an_unreachable_broker_is_an_error(arguments: list[str]) -> None:
    result = process([*arguments, "--bootstrap-server", "127.0.0.1:1"])
    assert result.returncode == 1
    assert result.stderr == "Error: 127.0.0.1:1: can't connect: Connection refused\n"


@pytest.mark.parametrize("address", ["nonsense:", "host:99999", ""])
def test_a_bad_address(address: str) -> None:
    result = run("topics", "list", "--bootstrap-server", address)
    assert result.exit_code == 2
    assert "HOST:PORT" in result.output


def test_bootstrap_from_the_environment() -> None:
    result = CliRunner(env={"PYLOGD_BOOTSTRAP_SERVER": "127.0.0.1:1"}).invoke(pylogd, ["topics", "list"])
    assert "127.0.0.1:1: can't connect" in result.output


class TestSettings:
    def test_list(self) -> None:
        lines = run("settings", "--output", "tsv").output.splitlines()
        assert [line for line in lines if line.startswith("log.segment.bytes\t1073741824\t")]
        assert len(run("settings", "--topic").output.splitlines()) > 10

    def test_explain(self) -> None:
        output = run("settings", "log.segment.bytes", "retention.ms").output
        assert "default: 1073741824" in output and "retention.ms" in output

    def test_json(self) -> None:
        (setting,) = json.loads(run("settings", "--json", "log.segment.bytes").output)
        assert setting["name"] == "log.segment.bytes" and setting["type"] == "int"

    def test_profiles(self) -> None:
        lines = run("settings", "--output", "tsv").output.splitlines()
        (line,) = [line for line in lines if line.startswith("num.partitions\t")]
        assert line.endswith("\tlogs,online,offline")
        lines = run("settings", "--profile", "online", "--output", "tsv").output.splitlines()
        (line,) = [line for line in lines if line.startswith("min.insync.replicas\t")]
        assert line.split("\t")[:3] == ["min.insync.replicas", "2", "1"]
        assert "profile online: 2 (" in run("settings", "min.insync.replicas").output
        shown = json.loads(run("settings", "--json", "--profile", "logs", "num.partitions").stdout)
        assert [(one["name"], one["value"], one["default"]) for one in shown["settings"]] == [
            ("num.partitions", "12", "1")
        ]
        result = run("settings", "--profile", "fast")
        assert result.exit_code == 1 and "the profiles are logs, online, offline" in result.output

    def test_unknown(self) -> None:
        result = run("settings", "log.segment.byte")
        assert result.exit_code == 1 and "did you mean log.segment.bytes?" in result.output


class TestBrokerRefuses:
    """Invalid options are reported before anything is started, by one line and exit code 2."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--set", "nonsense"], "NAME=VALUE"),
            (["--set", "log.segment.byte=1"], "did you mean log.segment.bytes?"),
            (["--set", "log.segment.bytes=many"], "log.segment.bytes"),
            (["--config", "/nonexistent.toml"], "No such file"),
            (["--listen", "127.0.0.1:notaport"], "notaport"),
        ],
    )
    def test_settings(self, arguments: list[str], message: str) -> None:
        result = run("broker", *arguments)
        assert result.exit_code == 2
        assert message in result.output and len(result.output.splitlines()) == 1
