"""A real ZooKeeper server as a child process, for a local cluster and for tests.

Strategy: ZooKeeper's jars are taken from the first place that has them (`find_jars`). The server runs from a zoo.cfg
written here; its data, its log and that file are in one directory. A socket that is bound and never listens reserves
its port: Java can bind the port too (both set SO_REUSEADDR), and the system gives it to no other process, so `hosts`
stays the same over restarts.

Rules: `start` returns once the server serves requests, or raises; every wait has an end. The server ends when the
thread that started it ends (PR_SET_PDEATHSIG works by thread). Blocking: not for use on a reactor's thread.

Must not know: the contents of the tree.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pylogd.base.errors import PylogdError
from pylogd.local.launch import bound

HOST: Final = "127.0.0.1"
#: The seconds that a server may take to answer, and to stop.
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
#: The number of ports to try if other processes take a port before the server binds it.
PORT_ATTEMPTS: Final = 5
_POLL_SECONDS: Final = 0.05

_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
#: Java's options for a small, short-lived server: a small heap, and a start without the optimising compiler.
_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.preAllocSize=4096",  # KiB of a new transaction log; the default is 64 MiB
    "-Dorg.apache.logging.log4j.level=INFO",
)
#: The jars that a server needs, among the many jars of pyspark and Kafka.
_SERVER_JARS: Final = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "slf4j-reload4j-*.jar",
    "reload4j-*.jar",
    "commons-io-*.jar",
)
#: The manifest of zookeeper.jar names its dependencies, except for one that writes the log.
_DEBIAN_JARS: Final = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-simple.jar")
_DEBIAN: Final = Path("/usr/share/java")


class ZooKeeperUnavailable(PylogdError):
    """No ZooKeeper server can run here; the text says what to install."""


class ZooKeeperFailed(PylogdError):
    """The server ended or did not answer in time; the text has the last error of its log."""


class LocalZooKeeper:
    """A standalone server on 127.0.0.1 that keeps its data in `data_dir`. Usable as a context manager.

    Session timeouts may be from 1 s (two ticks) to 300 s.
    port: the port; 0 chooses a free one.
    options: further lines of zoo.cfg.
    java_options: further arguments of java.
    sync: whether the server flushes to its disk. Otherwise acknowledged changes survive its end, but not the machine's.
    """

    def __init__(
        self,
        data_dir: str | Path,
        port: int = 0,
        *,
        options: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        heap_mib: int = 256,
        sync: bool = True,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.log_path = self.data_dir / "zookeeper.log"
        self.port = port
        self._options = dict(options or {})
        syncing = [] if sync else ["-Dzookeeper.forceSync=no"]
        self._java_options = [f"-Xmx{heap_mib}m", *_JAVA_OPTIONS, *syncing, *java_options]
        self._reserved: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """`host:port`, for clients' connect strings."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id; 0 if it does not run."""
        return 0 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, unless it runs. Return once it answers.

        Raises ZooKeeperUnavailable without Java or jars, and ZooKeeperFailed if it does not start.
        """
        if self.running:
            return
        java, jars = find_java(), find_jars()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        chosen = self.port
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                self._reserve(chosen)
                self._run(java, jars)
                return
            except (ZooKeeperFailed, OSError) as error:
                self._end(signal.SIGKILL)
                taken = "Address already in use" in str(error)
                if not taken or chosen or attempt == PORT_ATTEMPTS:
                    self.close()
                    if isinstance(error, OSError):
                        raise ZooKeeperFailed(f"can't use {self.hosts}: {error.strerror or error}") from error
                    raise
                self._release()
            except BaseException:
                self._end(signal.SIGKILL)
                self.close()
                raise

    def stop(self) -> None:
        """Stop the server cleanly, if it runs. Its data and its port are kept for the next `start`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server, like a crash."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start the server, on the same port with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Halt the process until `resume`: connections stay open, but nothing is answered (SIGSTOP)."""
        if self.running:
            os.kill(self.pid, signal.SIGSTOP)
            # A thread that has not seen the signal yet may still answer.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server continue (SIGCONT)."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop the server and release its port."""
        self.stop()
        self._release()

    def __enter__(self) -> LocalZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reserve(self, port: int) -> None:
        if self._reserved is not None:
            return
        reserved = socket.socket()
        try:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind((HOST, port))
        except OSError:
            reserved.close()
            raise
        self._reserved = reserved
        self.port = int(reserved.getsockname()[1])

    def _release(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _run(self, java: str, jars: Sequence[str]) -> None:
        configuration = self.data_dir / "zoo.cfg"
        lines = {
            "tickTime": "500",
            "dataDir": str(self.data_dir / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
            "admin.enableServer": "false",
            "maxClientCnxns": "0",
            "maxSessionTimeout": "300000",
            "4lw.commands.whitelist": "*",
            **self._options,
        }
        configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        command = [java, *self._java_options, "-cp", ":".join(jars), _MAIN, str(configuration)]
        with self.log_path.open("ab") as log:
            begin = os.fstat(log.fileno()).st_size
            self._process = subprocess.Popen(
                bound(command, signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.data_dir,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self.port):
            # Another server could answer on this port, so the process is checked again after the answer.
            if not self.running:
                raise ZooKeeperFailed(f"ZooKeeper ended at its start: {self._said(begin)}")
            if time.monotonic() > deadline:
                raise ZooKeeperFailed(f"ZooKeeper did not answer within {START_SECONDS:.0f} s: {self._said(begin)}")
            time.sleep(_POLL_SECONDS)
        if not self.running:
            raise ZooKeeperFailed(f"ZooKeeper ended at its start: {self._said(begin)}")

    def _said(self, begin: int) -> str:
        """Return the last error in the server's log since position `begin`, and the path of the log."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(begin)
            text = log.read().decode(errors="replace")
            errors = [line for line in text.splitlines() if "Exception" in line or "rror" in line]
            return f"{(errors or text.splitlines() or ['nothing'])[-1]} (see {self.log_path})"
        return f"see {self.log_path}"

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
            process.send_signal(with_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_java() -> str:
    """Return the path of a Java runtime: in $JAVA_HOME, on the PATH, or below /usr/lib/jvm.

    Raises ZooKeeperUnavailable.
    """
    for candidate in _javas():
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise ZooKeeperUnavailable(
        "no Java was found: install a runtime, version 17 or newer (Debian: apt-get install default-jre-headless), "
        "or set JAVA_HOME"
    )


def _javas() -> Iterator[str | None]:
    if home := os.environ.get("JAVA_HOME"):
        yield os.path.join(home, "bin", "java")
    yield shutil.which("java")
    yield from sorted(glob.glob("/usr/lib/jvm/*/bin/java"), reverse=True)


def find_jars() -> list[str]:
    """Return ZooKeeper's server jars with their dependencies. Raises ZooKeeperUnavailable.

    The first of these places that has them is used: $ZOOKEEPER_HOME (Apache's release), the Python package
    `pylogd-zookeeper`, Debian's package `libzookeeper-java`, $KAFKA_HOME (a release before 4.0), the Python package
    `pyspark`.
    """
    if home := os.environ.get("ZOOKEEPER_HOME"):
        found = [*_matching(Path(home) / "lib", ("*.jar",)), *_matching(Path(home), ("zookeeper*.jar",))]
        if _with_server(found):
            return found
        raise ZooKeeperUnavailable(f"ZOOKEEPER_HOME is {home}, which has no lib/zookeeper*.jar")
    if found := _in_package("pylogd_zookeeper", ("*.jar",)):
        return found
    if (_DEBIAN / "zookeeper.jar").exists():
        return _matching(_DEBIAN, _DEBIAN_JARS)
    if home := os.environ.get("KAFKA_HOME"):
        found = _matching(Path(home) / "libs", _SERVER_JARS)
        if _with_server(found):  # Kafka 4 has no server: try the next place
            return found
    if found := _in_package("pyspark", _SERVER_JARS):
        return found
    raise ZooKeeperUnavailable(
        "no ZooKeeper server was found: pip install 'pylogd-broker[zookeeper]', or install Debian's "
        "libzookeeper-java, or unpack Apache's release and set ZOOKEEPER_HOME to it"
    )


def _in_package(name: str, patterns: Sequence[str]) -> list[str]:
    """Return the jars in a Python package, without importing it; none if it has no server."""
    package = importlib.util.find_spec(name)
    if package is None or package.origin is None:
        return []
    found = _matching(Path(package.origin).parent / "jars", patterns)
    return found if _with_server(found) else []


def _with_server(jars: Sequence[str]) -> bool:
    return any(Path(jar).name.startswith("zookeeper") for jar in jars)


def _matching(folder: Path, patterns: Sequence[str]) -> list[str]:
    return [str(path) for pattern in patterns for path in sorted(folder.glob(pattern))]


def _answers(port: int) -> bool:
    """Return whether a ZooKeeper server on the port serves requests. (It answers `ruok` earlier.)"""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return b"Mode:" in answer
    except OSError:
        return False
