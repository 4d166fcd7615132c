"""A cluster on this machine, for trying things out: brokers as child processes, with a ZooKeeper of their own.

Strategy: everything is in one directory (`zookeeper`, `broker1`, `broker1.log`, ...), which a later run goes on with.
Each broker is started as a user would start it and tells on its first line of output where it listens.

Rules: whatever ends this process ends the children with it; every wait has an end. Blocking; not for reactors.
"""

from __future__ import annotations

import contextlib
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pylogd.errors import PylogdError
from pylogd.local.launch import bound
from pylogd.local.zookeeper import HOST, LocalZooKeeper

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
_RUN: Final = "from pylogd.cli.main import main; main()"
_PORT: Final = re.compile(r":(\d+)\b")


class BrokerFailed(PylogdError):
    """A broker ended at its start, or did not listen in time; the text has the end of its log."""


class LocalBroker:
    """One broker, in a process of its own. `host` and `port` say where it listens."""

    def __init__(self, node_id: int, folder: Path, port: int, settings: Mapping[str, str]) -> None:
        """Start it; `wait` returns once it listens. Port 0 takes a free one."""
        self.node_id = node_id
        self.host, self.port = HOST, port
        self.log_path = folder / f"broker{node_id}.log"
        command = [
            sys.executable, "-c", _RUN, "broker", "--node-id", str(node_id), "--listen", f"{HOST}:{port}",
            "--data", str(folder / f"broker{node_id}"),
        ]  # fmt: skip
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                bound(command, signal.SIGTERM), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid

    def wait(self) -> None:
        """Return once it listens. Raises BrokerFailed."""
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + START_SECONDS
        said = b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = stdout.read1(4096) if ready else b""  # type: ignore[attr-defined]
            if not chunk:
                why = "ended" if ready else f"did not listen within {START_SECONDS:.0f} s"
                raise BrokerFailed(f"broker {self.node_id} {why}: {self._last_line()} (see {self.log_path})")
            said += chunk
        found = _PORT.search(said.decode(errors="replace"))
        if found is None:
            raise BrokerFailed(f"broker {self.node_id} does not say where it listens: {said!r}")
        self.port = int(found[1])

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs; the negative number of the signal that killed it."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask it to stop; `join` waits for that."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)

    def join(self, seconds: float = STOP_SECONDS) -> int:
        """Its exit code; it is killed if it has not ended in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _last_line(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


class LocalCluster:
    """ZooKeeper and brokers 1 to `count`, in one directory. Usable as a context manager."""

    def __init__(self, folder: Path, count: int, *, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        """`port` is the first broker's, the others have the next; 0 takes free ones."""
        self.folder = folder.absolute()
        self.zookeeper = LocalZooKeeper(self.folder / "zookeeper")
        self.brokers: list[LocalBroker] = []
        self._count = count
        self._port = port
        self._settings = settings or {}

    @property
    def bootstrap(self) -> str:
        """Where clients begin: `host:port` of every broker, with commas."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers)

    def start(self) -> None:
        """Run it all; returns once every broker listens. Raises BrokerFailed and what a ZooKeeper raises, with all
        that ran ended.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.zookeeper.start()
            for node in range(1, self._count + 1):
                self.start_broker(node)
            for broker in self.brokers:
                broker.wait()
        except BaseException:
            self.stop()
            raise

    def start_broker(self, node_id: int) -> LocalBroker:
        """Start a broker that does not run; one that ran before goes on with what it had. To be waited for."""
        settings = {
            "zookeeper.connect": self.zookeeper.hosts,
            "default.replication.factor": str(min(self._count, 3)),
            **self._settings,
        }
        port = self._port + node_id - 1 if self._port else 0
        broker = LocalBroker(node_id, self.folder, port, settings)
        self.brokers = sorted(
            [*(other for other in self.brokers if other.node_id != node_id), broker], key=lambda one: one.node_id
        )
        return broker

    def stop(self) -> None:
        """Stop the brokers, then ZooKeeper."""
        for broker in self.brokers:
            broker.stop()
        for broker in self.brokers:
            broker.join()
        self.zookeeper.close()

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
