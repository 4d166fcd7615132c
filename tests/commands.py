"""Run `pylogd ...` in the process of the test, which saves the half second of processor time that a process imports.

What a process of its own has to prove (its exit status, signals, pipes, terminals) is tested in
`tests/integration/test_cli.py`, with a process for each group of commands in `test_secured_cluster.py`.
"""

from __future__ import annotations

import inspect
import tempfile
from typing import Any, NamedTuple

from click.testing import CliRunner

from pylogd.cli.main import pylogd
from tests.integration.conftest import Address


class Outcome(NamedTuple):
    """The exit status and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_command(*arguments: str, stdin: str | bytes = b"", **variables: str) -> Outcome:
    """Run a command with these variables of the environment. An error that is none of a command's is raised."""
    is_old = "mix_stderr" in inspect.signature(CliRunner).parameters  # click 8.1
    before: dict[str, Any] = {"mix_stderr": False} if is_old else {}
    with tempfile.TemporaryFile() as given:  # a file, because `produce` reads the descriptor
        given.write(stdin.encode() if isinstance(stdin, str) else stdin)
        given.seek(0)
        result = CliRunner(env=variables, **before).invoke(pylogd, arguments, input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def run(broker: Address, *arguments: str, stdin: str = "") -> Outcome:
    """Run a command against a broker."""
    return run_command(*arguments, stdin=stdin, PYLOGD_BOOTSTRAP_SERVER=broker.address)


def ok(broker: Address, *arguments: str, stdin: str = "") -> str:
    """Run a command that has to succeed without output on standard error. Return its output."""
    done = run(broker, *arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(broker: Address, *arguments: str) -> str:
    """Run a command that has to fail. Return the one line on standard error."""
    done = run(broker, *arguments)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
    return done.stderr
