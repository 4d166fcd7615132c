"""A real ZooKeeper server as a child process, for a local cluster and for tests.

Strategy: ZooKeeper comes as jars in more than one way; the first place that has them is used (`find_jars`). The server
runs from a zoo.cfg written here, with its data, its log and that file in one directory. The port is kept reserved by a
socket that is bound and never listens: Java may bind it beside us (both set SO_REUSEADDR), while nobody else is given
it, so `hosts` stays true over restarts.

Rules: `start` returns once the server says that it serves, or raises; every wait has an end. The server dies with the
thread that started it (PR_SET_PDEATHSIG goes by thread), so start it from one that stays. Blocking; not for reactors.

Must not know: what is kept in the tree.
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

from pylogd.errors import PylogdError
from pylogd.local.launch import bound

HOST: Final = "127.0.0.1"
#: How long a server may take until it answers, and to end.
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
#: How many ports are tried when each was taken between our choosing it and the server's binding it.
PORT_ATTEMPTS: Final = 5
_POLL_SECONDS: Final = 0.05

_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
#: A server here is small and short-lived: little heap, a start without the optimising compiler's threads.
_JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dzookeeper.preAllocSize=4096",  # KiB of a new transaction log; the default is 64 MiB
    "-Dorg.apache.logging.log4j.level=INFO",
)
#: What a server needs of pyspark's several hundred jars.
_PYSPARK_JARS: Final = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
)
#: zookeeper.jar names what it needs in its manifest, but for something that writes the log.
_DEBIAN_JARS: Final = ("zookeeper.jar", "zookeeper-jute.jar", "slf4j-simple.jar")
_DEBIAN: Final = Path("/usr/share/java")


class ZooKeeperUnavailable(PylogdError):
    """No ZooKeeper server can be run here; the text says what to install."""


class ZooKeeperFailed(PylogdError):
    """The server ended, or did not answer in time; the text has the end of its log."""


class LocalZooKeeper:
    """One standalone server on 127.0.0.1, keeping its data in `data_dir`.

    `port` 0 picks a free one. `options` are further lines of zoo.cfg, `java_options` further arguments of java.
    Without `sync` the server does not wait for its disk: what it has acknowledged outlives it, but not the machine.
    Sessions may be asked for from 1 s (two ticks) to 60 s. Usable as a context manager.
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
        """`host:port`, as clients take it for their connect string."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id, 0 while none runs."""
        return 0 if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there, answering or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Run the server; returns once it answers. Nothing happens if it runs.

        Raises `ZooKeeperUnavailable` without Java or jars, `ZooKeeperFailed` if it does not come up.
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
        """End the server in order; nothing happens if none runs. Its data and its port are kept for a `start`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """`stop` and `start`, on the same port with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the process where it is: its connections stay open, nothing is answered, until `resume`."""
        if self.running:
            os.kill(self.pid, signal.SIGSTOP)
            # Until each of its threads has seen the signal, one of them may answer.
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused server go on."""
        if self.running:
            os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the server and give its port back."""
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
            # Whoever answers on this port must be ours, so it is looked at after the answer, too.
            if not self.running:
                raise ZooKeeperFailed(f"ZooKeeper ended at its start: {self._said(begin)}")
            if time.monotonic() > deadline:
                raise ZooKeeperFailed(f"ZooKeeper did not answer within {START_SECONDS:.0f} s: {self._said(begin)}")
            time.sleep(_POLL_SECONDS)
        if not self.running:
            raise ZooKeeperFailed(f"ZooKeeper ended at its start: {self._said(begin)}")

    def _said(self, begin: int) -> str:
        """What the server logged since `begin`, in short, and where the rest is."""
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
    """The path of a Java runtime: $JAVA_HOME's, the one on the PATH, or one below /usr/lib/jvm."""
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
    """ZooKeeper's server jars and what they need: from $ZOOKEEPER_HOME (Apache's release), Debian's package
    `libzookeeper-java`, or the Python package `pyspark`.
    """
    if home := os.environ.get("ZOOKEEPER_HOME"):
        found = [*_matching(Path(home) / "lib", ("*.jar",)), *_matching(Path(home), ("zookeeper*.jar",))]
        if any(Path(jar).name.startswith("zookeeper") for jar in found):
            return found
        raise ZooKeeperUnavailable(f"ZOOKEEPER_HOME is {home}, which has no lib/zookeeper*.jar")
    if (_DEBIAN / "zookeeper.jar").exists():
        return _matching(_DEBIAN, _DEBIAN_JARS)
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin is not None:
        found = _matching(Path(spark.origin).parent / "jars", _PYSPARK_JARS)
        if any(Path(jar).name.startswith("zookeeper-") for jar in found):
            return found
    raise ZooKeeperUnavailable(
        "no ZooKeeper server was found: pip install pyspark (its wheel has the jars), or install Debian's "
        "libzookeeper-java, or unpack Apache's release and set ZOOKEEPER_HOME to it"
    )


def _matching(folder: Path, patterns: Sequence[str]) -> list[str]:
    return [str(path) for pattern in patterns for path in sorted(folder.glob(pattern))]


def _answers(port: int) -> bool:
    """Whether a ZooKeeper server on the port serves requests; it answers `ruok` before it does."""
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return b"Mode:" in answer
    except OSError:
        return False
