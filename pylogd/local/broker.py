"""Run a broker in its own process: start it in the same way as users, wait until it listens, pause, stop and kill it.

`pylogd demo`, `pylogd cluster up`, the tests, the chaos, crash and kill runs, the conformance runs and the benchmarks
all handle local brokers with this module.

Rules: every wait has an end. A broker started here ends when the thread that started it does. Blocking: not for use on
a reactor's thread.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

from pylogd.base.errors import PylogdError
from pylogd.local.launch import bound

HOST: Final = "127.0.0.1"
#: The seconds that a broker may take to listen, and to stop. They are long enough for a busy machine.
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 120.0
_ADDRESS: Final = re.compile(r"([0-9A-Za-z_.\-]+|\[[0-9a-fA-F:]+\]):(\d+)")
#: The bytes of a broker's log in an error.
_LOG_CHARACTERS: Final = 4000


class BrokerFailed(PylogdError):
    """A broker did not start or did not stop in time. Its notes have the end of the broker's log."""


class Process(Protocol):
    """The methods of an operating-system process that this module needs; `subprocess.Popen` has them."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal. A process that has ended is left alone."""


def pylogd_command() -> list[str]:
    """Return the command that runs `pylogd`: the script beside this interpreter, or else the package."""
    script = Path(sys.executable).with_name("pylogd")
    if script.exists():
        return [str(script)]
    return [sys.executable, "-c", "from pylogd.cli.main import main; main()"]


class RunningBroker:
    """A broker's process, which may end at any moment. `host` and `port` are known once it listens."""

    def __init__(self, process: Process, output: IO[bytes], log_path: Path, death: Sequence[int] = ()) -> None:
        """`output` is the broker's standard output. `log_path` is the file with its standard error.

        death: descriptors that become readable when the process ends, needed if the end does not close `output`.
        """
        self.process = process
        self.pid = process.pid
        self.log_path = log_path
        self.host, self.port = HOST, 0
        self._output = output
        self._death = list(death)

    @property
    def address(self) -> str:
        """`host:port`, for clients' bootstrap servers."""
        return f"{self.host}:{self.port}"

    @property
    def exit_code(self) -> int | None:
        """The exit code, or None while it runs. Negative: the number of the signal that killed it."""
        return self.process.poll()

    def wait(self, seconds: float = START_SECONDS) -> None:
        """Return once the broker listens, which it reports in the first line of its output. Raises BrokerFailed."""
        deadline = time.monotonic() + seconds
        said = b""
        while not said.endswith(b"\n"):
            watched = [self._output.fileno(), *self._death]
            ready, _, _ = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(watched[0], 4096) if watched[0] in ready else b""
            if not chunk:
                raise self._failure("ended before it listened" if ready else f"did not listen within {seconds:.0f} s")
            said += chunk
        found = _ADDRESS.search(said.decode(errors="replace"))
        if found is None:
            raise self._failure(f"wrote no address in its first line: {said!r}")
        self.host, self.port = found[1], int(found[2])

    def log(self) -> str:
        """Return everything that the broker has written to standard error, over all of its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def last_line(self) -> str:
        """Return the last line of the log, which gives the reason why a broker ended."""
        return (self.log().strip().splitlines() or ["it logged nothing"])[-1]

    def pause(self) -> None:
        """Halt the process without ending it (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process continue (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Stop the broker cleanly and return its exit code. Raises BrokerFailed, as `join` does."""
        self.ask_to_stop()
        return self.join()

    def ask_to_stop(self) -> None:
        """Request a clean stop like a service manager (SIGTERM), and resume a paused broker. `join` waits for the end.

        Call it once: at a second signal a broker closes its connections without handing over its leaderships.
        """
        self.process.send_signal(signal.SIGTERM)
        self.resume()

    def join(self, seconds: float = STOP_SECONDS) -> int:
        """Wait for the end and return the exit code. A broker that takes longer is killed, and BrokerFailed raised."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not stop within {seconds:.0f} s") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process, like a crash, and wait until it has ended."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _failure(self, what: str) -> BrokerFailed:
        error = BrokerFailed(f"the broker {what}: {self.last_line()} (its log is {self.log_path})")
        error.add_note(f"The end of its log:\n{self.log()[-_LOG_CHARACTERS:]}")
        return error


class BrokerProcess(RunningBroker):
    """A broker as a child process, which runs `pylogd broker` of the installed package."""

    process: subprocess.Popen[bytes]

    def __init__(
        self,
        data: Path,
        log: Path,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        port: int = 0,
        prefix: Sequence[str] = (),
        host: str = HOST,
        wait: bool = True,
        bind_life: bool = True,
    ) -> None:
        """Start the broker on the data directory `data`. Its standard error is appended to the file `log`.

        arguments: further arguments of `pylogd broker`.
        port: the port; 0 chooses a free one.
        prefix: a command that runs the broker in the same process in the end, such as `nsenter`.
        wait: whether to return only when the broker listens.
        bind_life: whether the broker ends with this process; without it a start is 20 ms faster.

        Raises BrokerFailed.
        """
        self.data = data
        settings = settings or {}
        self.node_id = int(settings.get("node.id", 1))
        command = [*prefix, *pylogd_command(), "broker", "--listen", f"{host}:{port}", "--data", str(data), *arguments]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        if bind_life:
            command = bound(command, signal.SIGTERM)
        with log.open("ab") as errors:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        assert child.stdout is not None
        super().__init__(child, child.stdout, log)
        if wait:
            try:
                self.wait()
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        super().kill()
        self._output.close()
