"""The systemd units in etc/: systemd accepts them, they are closed off, and their commands exist with these options."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from pylogd.cli.main import COMMANDS, LazyGroup

CHECKOUT = Path(__file__).resolve().parents[2]
UNITS = sorted((CHECKOUT / "etc").glob("*.service"))
#: Where the units expect pylogd.
_HOME = "/opt/pylogd/bin/"
#: `systemd-analyze security` goes from 0 (closed off) to 10; it calls 2 and less "OK".
_MOST_EXPOSED = 1.5

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> str:
    assert ANALYZE is not None
    done = subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def lines(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def test_there_is_a_unit_for_each_service() -> None:
    assert {unit.stem for unit in UNITS} == {"pylogd", "pylogd-console", "pylogd-mirror", "pylogd-registry"}


@needs_systemd
def test_systemd_accepts_them(tmp_path: Path) -> None:
    program = tmp_path / "pylogd"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace(_HOME, f"{tmp_path}/"))
    said = analyze("verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS))
    assert str(tmp_path) not in said, said


@needs_systemd
def test_they_are_closed_off() -> None:
    for unit in UNITS:
        found = re.search(r"Overall exposure level for \S+: ([\d.]+)", analyze("security", "--offline=true", str(unit)))
        assert found is not None
        assert float(found[1]) <= _MOST_EXPOSED, unit.name


def test_the_workers_of_a_broker_are_stopped_by_their_parent() -> None:
    (unit,) = (unit for unit in UNITS if unit.stem == "pylogd")
    assert lines(unit, "KillMode") == ["mixed"], "otherwise each gets SIGTERM twice, and the metadata store too early"


@pytest.mark.parametrize("unit", UNITS, ids=[unit.stem for unit in UNITS])
def test_the_command_exists_with_these_options(unit: Path) -> None:
    (line,) = lines(unit, "ExecStart")
    program, *words = shlex.split(line)
    assert program == f"{_HOME}pylogd"
    if words[0] == "console" and "console" not in COMMANDS:
        pytest.skip("this pylogd has no console")
    command: click.Command = LazyGroup("pylogd")
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= options
    assert lines(unit, "RestartPreventExitStatus") == ["2"]
