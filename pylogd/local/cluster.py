"""Several brokers on this machine as child processes, with or without their own ZooKeeper server.

Strategy: everything is in one directory (`zookeeper`, `broker1`, `broker1.log`, ...), which a later run resumes. A
broker keeps its data directory, its log file and its port over restarts, so clients find it again.

Rules: the children end with this process, however it ends; every wait has an end. Blocking; not for reactors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pylogd.base.ports import free_ports
from pylogd.local.broker import HOST, BrokerFailed, BrokerProcess
from pylogd.local.zookeeper import LocalZooKeeper

_TRACEBACK = "Traceback (most recent call last)"
#: The bytes of a log with a traceback that are reported.
_LOG_CHARACTERS = 4000


class LocalBrokers:
    """Brokers 1 to `size` of the cluster at the ZooKeeper connect string `connect`. No broker runs until it is started.

    `brokers` has the running brokers by node id: those that were started, and not stopped or killed since.
    """

    def __init__(
        self,
        folder: Path,
        connect: str,
        size: int,
        settings: Mapping[str, str] | None = None,
        racks: Sequence[str] = (),
        prefix: Sequence[str] = (),
        port: int = 0,
        labels: Sequence[str] = (),
    ) -> None:
        """`racks` and `labels` are those of each broker in turn. `prefix` is that of `BrokerProcess`.

        `port` is the port of broker 1; the other brokers have the following ports. 0 chooses free ports.
        """
        self.folder = folder
        self.prefix = prefix
        self.settings = {
            "zookeeper.connect": connect, "default.replication.factor": str(min(size, 3)), **(settings or {}),
        }  # fmt: skip
        self.racks = dict(enumerate(racks, 1))
        self.labels = dict(enumerate(labels, 1))
        self.ports = dict(enumerate(range(port, port + size) if port else free_ports(size), 1))
        self.brokers: dict[int, BrokerProcess] = {}
        self.paused: set[int] = set()

    # -- brokers

    def start(self, node: int, settings: Mapping[str, str] | None = None, wait: bool = True) -> BrokerProcess:
        """Start a broker that does not run, or a new broker. An unknown node id gets a free port. Raises BrokerFailed.

        `settings` are added to those of all brokers. Without `wait`, call the broker's `wait` before using it.
        """
        if node not in self.ports:
            self.ports[node] = free_ports(1)[0]
        more = {**self.settings, "node.id": str(node)}
        if node in self.racks:
            more["broker.rack"] = self.racks[node]
        if node in self.labels:
            more["broker.labels"] = self.labels[node]
        broker = self.launch(node, {**more, **(settings or {})})
        if wait:
            try:
                broker.wait()
            except BaseException:
                broker.kill()
                raise
        self.brokers[node] = broker
        return broker

    def launch(self, node: int, settings: Mapping[str, str]) -> BrokerProcess:
        """Run a broker's process, without waiting. A subclass may choose other directories, prefixes or hosts."""
        return BrokerProcess(
            self.folder / f"broker{node}", self.folder / f"broker{node}.log", settings, port=self.ports[node],
            prefix=self.prefix, wait=False,
        )  # fmt: skip

    def stop(self, node: int) -> int:
        """Stop a broker like a service manager. Return its exit code. Raises BrokerFailed if it does not stop."""
        self.paused.discard(node)
        return self.brokers.pop(node).stop()

    def kill(self, node: int) -> None:
        """Kill a broker, like a crash."""
        self.paused.discard(node)
        self.brokers.pop(node).kill()

    def pause(self, node: int) -> None:
        """Halt a broker's process without ending it (SIGSTOP)."""
        self.paused.add(node)
        self.brokers[node].pause()

    def resume(self, node: int) -> None:
        """Let a paused broker continue (SIGCONT)."""
        self.brokers[node].resume()
        self.paused.discard(node)

    def restart(self, node: int) -> BrokerProcess:
        """Stop a broker if it runs, and start it on the same directory and port."""
        if node in self.brokers:
            self.stop(node)
        return self.start(node)

    def kill_all(self) -> None:
        """Kill every broker that runs."""
        for node in list(self.brokers):
            self.kill(node)

    def close(self) -> list[str]:
        """Stop every broker that runs. Return the problems: a text for each early or failed end, and for each
        traceback.
        """
        faults = []
        ended = {node for node, broker in self.brokers.items() if broker.exit_code is not None}
        for broker in self.brokers.values():
            broker.ask_to_stop()
        for node, broker in self.brokers.items():
            try:
                code = broker.join()
            except BrokerFailed as error:
                faults.append("\n".join([str(error), *error.__notes__]))
                continue
            if node in ended or code != 0:
                faults.append(f"broker {node} {'died' if node in ended else 'stopped'} with exit code {code}")
        self.brokers = {}
        self.paused = set()
        logs = {node: self.log(node) for node in self.ports}
        return faults + [
            f"broker {node} logged a traceback:\n{log[-_LOG_CHARACTERS:]}"
            for node, log in logs.items()
            if _TRACEBACK in log
        ]

    def log(self, node: int) -> str:
        """Return everything that a broker has written to standard error, over all of its starts."""
        path = self.folder / f"broker{node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- addresses

    @property
    def connect(self) -> str:
        """ZooKeeper's connect string, with the chroot."""
        return self.settings["zookeeper.connect"]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients' bootstrap servers."""
        return ",".join(self.address(node) for node in self.ports)

    def address(self, node: int) -> str:
        """Return `host:port` of one broker."""
        return f"{HOST}:{self.ports[node]}"


class LocalCluster(LocalBrokers):
    """Brokers 1 to `count` and their own ZooKeeper server. A context manager: all of them run inside `with`."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        port: int = 0,
        zookeeper_port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`port` is the port of broker 1; the other brokers have the following ports. 0 chooses free ports."""
        folder = folder.absolute()
        super().__init__(folder, "", count, settings, port=port)
        self.zookeeper = LocalZooKeeper(folder / "zookeeper", zookeeper_port)

    @property
    def sasl_bootstrap(self) -> str:
        """The addresses for clients that authenticate with a password; empty if the cluster has none."""
        return ""

    def hints(self) -> list[str]:
        """Return commands to try the cluster."""
        return [
            f"echo hello | pylogd produce demo --create -b {self.bootstrap}",
            f"pylogd consume demo -b {self.bootstrap}",
        ]

    def __enter__(self) -> LocalCluster:
        """Start ZooKeeper, then all brokers at once. Return once every broker listens.

        Raises BrokerFailed, ZooKeeperUnavailable or ZooKeeperFailed, after ending all started processes.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.zookeeper.start()
            self.settings["zookeeper.connect"] = self.zookeeper.hosts
            for node in self.ports:
                self.start(node, wait=False)
            for broker in self.brokers.values():
                broker.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> list[str]:
        """Stop the brokers, then ZooKeeper. Return the problems of the brokers."""
        try:
            return super().close()
        finally:
            self.zookeeper.close()
