"""Spark jobs, such as `pylogd load`, as commands in sessions of their own, and the processes of a session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pylogd
from pylogd.local.broker import pylogd_command

END_SECONDS = 120.0
_PACKAGES = Path(pylogd.__file__).resolve().parent.parent
_CONFS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"  # starts faster


class Process(NamedTuple):
    """A running process."""

    pid: int
    parent: int
    command: str


def of_session(session: int) -> list[Process]:
    """Return the running processes of a session: the command, its JVMs and the Python workers."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == session and state != "Z":
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                    found.append(Process(int(folder.name), int(parent), command))
            except OSError:
                continue  # ended meanwhile
    return found


def kill(pids: Sequence[int]) -> None:
    """Send SIGKILL to the processes that still run."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class SparkProcess:
    """A run of a command that starts Spark. Its output is appended to `log`."""

    def __init__(
        self, command: Sequence[str], log: Path, scratch: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """`scratch`: the directory in which it runs. `environment`: additional variables."""
        self.log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        # The checkout in which it runs must not hide the installed package.
        variables = {**os.environ, "PYTHONSAFEPATH": "1", "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})}
        if "site-packages" not in _PACKAGES.parts:
            variables["PYTHONPATH"] = str(_PACKAGES)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=variables, cwd=scratch,
            )  # fmt: skip
        self.begun = time.monotonic()

    def ended(self) -> bool:
        """Return whether all processes have ended. A JVM ends a moment after the command."""
        return self.process.poll() is not None and not of_session(self.process.pid)

    def output(self) -> str:
        """Return the output of this run."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def wait_for(self, condition: Callable[[], bool], seconds: float, *, pause: float) -> None:
        """Wait until a condition holds. Raises AssertionError if it does not within `seconds`, or the command ends.

        pause: seconds between two looks, which take processor time from the command.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(pause)

    def jvms(self, marker: str) -> list[int]:
        """Return the JVMs whose command line contains a text."""
        return [each.pid for each in of_session(self.process.pid) if "java" in each.command and marker in each.command]

    def drivers_jvm(self) -> list[int]:
        """Return the JVM that the command started."""
        return self.jvms("org.apache.spark.deploy.SparkSubmit")

    def executors(self) -> list[int]:
        """Return the JVMs of the executors, if these are separate processes."""
        return sorted(self.jvms("CoarseGrainedExecutorBackend"))

    def workers(self) -> list[int]:
        """Return the Python processes that plan, read and write for Spark, without those that only fork others."""
        ours = {each.pid: each for each in of_session(self.process.pid) if "pyspark" in each.command}
        forked = [each.pid for each in ours.values() if each.parent in ours and "daemon" in ours[each.parent].command]
        return sorted(forked)

    def kill_all(self) -> None:
        """Kill all processes of the session until none is left."""
        deadline = time.monotonic() + END_SECONDS
        while left := of_session(self.process.pid):
            kill([each.pid for each in left])
            if time.monotonic() > deadline:
                raise RuntimeError(f"these processes did not end: {left}")
        self.process.wait(END_SECONDS)


def confs(scratch: Path, classes: Path | None = None) -> dict[str, str]:
    """Return settings with which Spark starts fast.

    `classes` is the path of an archive of the JVM's classes, with which Spark starts in half the time. The first run
    writes it when it ends.
    """
    java = _JAVA
    if classes is not None:
        java += f" -XX:{'SharedArchiveFile' if classes.exists() else 'ArchiveClassesAtExit'}={classes}"
    return {**_CONFS, "spark.driver.extraJavaOptions": java, "spark.local.dir": str(scratch)}


#: With this setting `pylogd load --follow` waits for Spark; without it, it loads by itself until Spark is there.
ONLY_BY_SPARK = {"spark.hadoop.fs.defaultFS": "file:///"}


class Loader(SparkProcess):
    """A run of `pylogd load`. `classes`: see `confs`."""

    def __init__(
        self, arguments: Sequence[str], log: Path, master: str, scratch: Path, classes: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        command = [*pylogd_command(), "load", *arguments, "--master", master]
        for name, value in {**confs(scratch, classes), **(settings or {})}.items():
            command += ["--conf", f"{name}={value}"]
        super().__init__(command, log, scratch)


def has_file(directory: Path, suffix: str) -> bool:
    """Return whether a directory contains such a file at any depth. Directories may be removed meanwhile."""
    return any(name.endswith(suffix) for _, _, names in os.walk(directory) for name in names)


def python_version() -> str:
    """For the results."""
    return sys.version.split()[0]
