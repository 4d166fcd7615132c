"""Type the README's steps on a new machine, and write FIRST_MINUTES.md: `make first-minutes`.

Strategy: a root folder of Debian with Python, pipx and Java is the new machine. Packages come from a folder of wheels
in place of PyPI. The lines are read from README.md, so that what is tried is what is there. Every step but
installations has to end within 5 s; those that run until Ctrl-C have to do their work in that time.
"""

from __future__ import annotations

import argparse
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tests.packages.roots import CHECKOUT, CommandFailed, debian_root, require, run, unpacked, wheels
from tests.pages import circumstances, write_page

MOST_SECONDS: Final = 5.0
#: For what may take longer.
_INSTALL_SECONDS: Final = 600.0
#: How long a step may take before it is given up; one of more than MOST_SECONDS is a failure all the same.
_PATIENCE_SECONDS: Final = 60.0
_ENVIRONMENT: Final = (
    "env", "-i", "HOME=/root", "LC_ALL=C.UTF-8", "TERM=dumb", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/dist",
    "PATH=/root/venv/bin:/root/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
)  # fmt: skip
_INTERRUPTED: Final = 130


@dataclass
class Step:
    """A line that was typed, and how long it took."""

    line: str
    seconds: float
    install: bool = False
    note: str = ""

    @property
    def slow(self) -> bool:
        return not self.install and self.seconds > MOST_SECONDS


def block(title: str) -> list[str]:
    """Return the lines of the first shell block below a heading of the README, without empty ones."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    below = text.partition(f"\n## {title}\n")[2]
    found = re.search(r"```sh\n(.*?)```", below, re.DOTALL)
    if not found:
        raise CommandFailed(f"README.md has no shell block below {title!r}")
    return [line for line in found[1].splitlines() if line.strip()]


class Machine:
    """A new machine, and the steps that were typed on it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.steps: list[Step] = []

    def _command(self, line: str) -> list[str]:
        return ["chroot", str(self._root), *_ENVIRONMENT, "sh", "-c", f"cd /root && {line}"]

    def type(self, line: str, *, install: bool = False) -> str:
        """Run a line until it ends. Return its output. Raises CommandFailed."""
        started = time.monotonic()
        said = run(self._command(line), seconds=_INSTALL_SECONDS if install else _PATIENCE_SECONDS)
        self.steps.append(Step(line, time.monotonic() - started, install))
        return said

    @contextmanager
    def running(self, line: str, until: str) -> Iterator[None]:
        """Run a line beside what follows. Its step is done once its output contains `until`."""
        started = time.monotonic()
        process = subprocess.Popen(self._command(f"exec {line}"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        try:
            said = wait_for(process.stdout, until)
            if until not in said:
                raise CommandFailed(f"{line}: no {until!r} in {said!r}")
            self.steps.append(Step(line, time.monotonic() - started, note=f"until `{until}`"))
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_PATIENCE_SECONDS)
            process.stdout.close()

    def interrupt(self, line: str, until: str) -> None:
        """Run a line that runs until Ctrl-C, and press that once its output contains `until`, or after a second."""
        started = time.monotonic()
        process = subprocess.Popen(self._command(f"exec {line}"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        said = wait_for(process.stdout, until, _PATIENCE_SECONDS if until else 2.0)
        process.send_signal(signal.SIGINT)
        code = process.wait(_PATIENCE_SECONDS)
        process.stdout.close()
        if code != _INTERRUPTED or until not in said:
            raise CommandFailed(f"{line}: exit status {code}, {said!r}")
        self.steps.append(Step(line, time.monotonic() - started, note="with Ctrl-C"))


def wait_for(output: IO[bytes], text: str, seconds: float = _PATIENCE_SECONDS) -> str:
    """Read until the text is there, or for so long. Return what was read."""
    said, deadline = b"", time.monotonic() + seconds
    while not (text and text.encode() in said):
        ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        chunk = output.read1(65536) if ready else b""  # type: ignore[attr-defined]
        if not chunk:
            break
        said += chunk
    return said.decode(errors="replace")


def five_minutes(machine: Machine) -> None:
    """Type the block "Five minutes" beside the broker of the block before it."""
    lines = block("Five minutes")
    (stopped,) = [index for index, line in enumerate(lines) if "with the broker stopped" in line]
    with machine.running("pylogd broker --data ./data", "listens on"):
        for line in lines[:stopped]:
            if line.startswith("#"):
                continue
            if "--group" in line and "consume" in line:
                machine.interrupt(line, "signed up")
            elif "--from end" in line:
                machine.interrupt(line, "")
            else:
                machine.type(line)
    for line in lines[stopped + 1 :]:
        machine.type(line)


def several_brokers(machine: Machine) -> None:
    """Type the block "Several brokers"."""
    lines = [line.partition("  #")[0].strip() for line in block("Several brokers")]
    machine.type(lines[0], install=True)
    with machine.running(lines[1], "bootstrap servers"):
        for line in lines[2:]:
            machine.type(line)


def try_all(machine: Machine) -> None:
    """Type everything."""
    (pipx,) = re.findall(r"^pipx install .*$", (CHECKOUT / "docs" / "install.md").read_text(), re.MULTILINE)
    machine.type(pipx, install=True)
    machine.type("/root/.local/bin/pylogd --version")
    for line in block("Install"):
        machine.type(line.partition("  #")[0].strip(), install=True)
    machine.type("pylogd --version")
    five_minutes(machine)
    several_brokers(machine)


def rows(steps: Sequence[Step]) -> list[str]:
    def limit(step: Step) -> str:
        return "an installation" if step.install else "TOO SLOW" if step.slow else step.note

    return [f"| `{step.line.replace('|', chr(92) + '|')}` | {step.seconds:.1f} | {limit(step)} |" for step in steps]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="the page to write")
    options = parser.parse_args()
    # Shells ignore SIGINT for what they run in the background, and what is typed here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    require("mmdebstrap", "mvn")
    tar = debian_root("minutes", ("python3", "python3-venv", "pipx", "ca-certificates", "openjdk-17-jre-headless"))
    with tempfile.TemporaryDirectory(prefix="pylogd-minutes-") as folder, unpacked(tar, Path(folder) / "root") as root:
        run(["sh", CHECKOUT / "packages" / "zookeeper" / "build.sh", sys.executable, root / "dist"])
        shutil.copytree(wheels(), root / "dist", dirs_exist_ok=True)
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", root / "dist", "pip", "setuptools"])
        (root / "var" / "log" / "dpkg.log").write_text("status installed\n" * 1000)
        machine = Machine(root)
        try_all(machine)
    slow = [step for step in machine.steps if step.slow]
    lines = [
        "# The first minutes", "", "Written by `make first-minutes`.", "", circumstances(), "",
        "The README's steps, typed by a program in a new Debian with Python, pipx and Java. Packages come from a "
        f"folder, not from PyPI. Every step but installations has to take less than {MOST_SECONDS:.0f} s: "
        f"{'all do' if not slow else f'{len(slow)} DO NOT'}.", "",
        "| step | seconds | |", "| --- | --- | --- |", *rows(machine.steps),
    ]  # fmt: skip
    print("\n".join(lines))
    if options.results:
        write_page(options.results, lines)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
