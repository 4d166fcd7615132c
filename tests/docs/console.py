"""A console that types the sh blocks of documents, in one folder, against brokers of the tests.

The text is run by bash as readers see it, but for three things. Addresses and paths of the document become those of the
test. Lines of `LINES_EXCEPTED` are left out. And a command that does not end by itself is interrupted, as a reader does
by Ctrl-C: `endless` says for each which condition it has to meet first. A line that ends in `&` runs until the console
is closed; it too has to meet a condition, before the next line is typed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pylogd.local.broker import pylogd_command
from tests.docs.blocks import Block
from tests.docs.kinds import excepted_line
from tests.sparks import python_environment

SECONDS = 240
#: bash functions around what does not end. $LOG is what the command has printed so far.
_PRELUDE = r"""
set -euo pipefail
started() {  # CONDITION COMMAND: run it in the background, and wait for the condition
    LOG=$(mktemp "$CONSOLE/log.XXXXXX")
    set -m; bash -c "$2" >"$LOG" 2>&1 </dev/null & PID=$!; set +m
    echo $PID >>"$CONSOLE/pids"
    local end=$((SECONDS + 120))
    until eval "$1" >/dev/null 2>&1; do
        if ! kill -0 $PID 2>/dev/null; then echo "ended before ($1):" "$2" >&2; cat "$LOG" >&2; exit 1; fi
        if [ $SECONDS -gt $end ]; then echo "waited in vain for ($1):" "$2" >&2; cat "$LOG" >&2; exit 1; fi
        sleep 0.1
    done
}
endless() {  # CONDITION COMMAND: interrupt it once the condition is met
    started "$@"
    kill -INT -- -$PID
    local status=0
    wait $PID || status=$?
    cat "$LOG"
    if [ $status != 130 ] && [ $status != 0 ]; then echo "exit status $status:" "$2" >&2; cat "$LOG" >&2; exit 1; fi
}
"""


class Console:
    """Types blocks. A context manager that ends what runs in the background.

    written: what to put in place of texts of the document, the longest first. endless: a pattern of a line, without its
    comment, that does not end, and the condition, in bash, at which it may be interrupted. answers: a pattern of a line
    that asks for something, and the answer.
    """

    def __init__(
        self,
        folder: Path,
        written: Mapping[str, str],
        endless: Mapping[str, str] | None = None,
        answers: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._written = dict(written)
        self._endless = dict(endless or {})
        self._answers = dict(answers or {})
        self._state = folder / ".console"
        self._state.mkdir(parents=True)
        for name, command in {"pylogd": pylogd_command(), "python": [sys.executable]}.items():
            script = self._state / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            script.chmod(0o755)
        self.environment = {
            **os.environ, **python_environment(), "PATH": f"{self._state}:{os.environ['PATH']}",
            "CONSOLE": str(self._state), "PYTHONUNBUFFERED": "1", **(environment or {}),
        }  # fmt: skip

    def write(self, written: str, here: str) -> None:
        """Put `here` in place of a text of the document from now on."""
        self._written[written] = here

    def endless(self, pattern: str, condition: str) -> None:
        """From now on, interrupt lines of a pattern once the condition is met."""
        self._endless[pattern] = condition

    def filled(self, text: str) -> str:
        """Return a text of the document with the addresses and paths of the test."""
        names = sorted(self._written, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, names)), lambda found: self._written[found[0]], text) if names else text

    def run(self, block: Block, prelude: str = "", until: str = "") -> str:
        """Run a block of sh or Python, which has to succeed. Return its output.

        `prelude` is run before it. `until` is for a program that does not end: when it may be interrupted.
        """
        text = self.filled(block.text)
        if block.language == "python":
            program = self.folder / f"{Path(block.page).stem}-{block.line}.py"
            program.write_text(prelude + text)
            text, prelude = f"python {program}", ""
            text = f"endless {shlex.quote(until)} {shlex.quote(text)}" if until else self._line(text)
        else:
            text = "\n".join(self._line(line) for line in logical_lines(text) if not excepted_line(line))
        return self.type(f"{prelude}\n{text}", str(block))

    def type(self, text: str, name: str) -> str:
        """Run lines of bash."""
        done = subprocess.run(
            ["bash", "-c", _PRELUDE + text], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name} exits with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr}"
        return done.stdout

    def _line(self, line: str) -> str:
        command = line.partition(" #")[0].strip()
        for pattern, condition in self._endless.items():
            if re.fullmatch(pattern, command):
                if command.endswith("&"):
                    return f"started {shlex.quote(condition)} {shlex.quote(command.removesuffix('&'))}"
                return f"endless {shlex.quote(condition)} {shlex.quote(command)}"
        for pattern, answer in self._answers.items():
            if re.fullmatch(pattern, command):
                return f"{command} <<< {shlex.quote(answer)}"
        assert not re.search(r"[^&]&$", command), f"when does it run? {command}"
        return line

    def stop(self) -> None:
        """Interrupt what runs in the background, and wait for its end."""
        pids = self._state / "pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            self._end(int(pid))
        pids.unlink(missing_ok=True)

    def _end(self, pid: int) -> None:
        """It was a child of a bash that has ended, so it can't be waited for."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGINT)
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                os.killpg(pid, 0)
                time.sleep(0.05)
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            os.killpg(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} did not end within {SECONDS} s of SIGINT: {command}")

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def logical_lines(text: str) -> list[str]:
    """Return lines of a shell with those that are continued joined."""
    return text.replace("\\\n", " ").splitlines()


def commands(blocks: Sequence[Block]) -> list[list[str]]:
    """Return the words of each command of sh blocks, without comments, and without lines that are left out."""
    lines = [line for block in blocks for line in logical_lines(block.text) if not excepted_line(line)]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]
