"""The faults of a mirror: what is done to it and its clusters, which alerts have to fire, and which others may."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pylogd.base.ports import free_ports
from pylogd.client import Admin, TopicPartition
from pylogd.local.zookeeper import LocalZooKeeper
from tests.alerts.prometheus import MIRROR
from tests.alerts.scene import Fault, Scene
from tests.mirror.run import End
from tests.mirror.traffic import Writer
from tests.mirrors import MirrorProcess, until, write_file

TOPIC: Final = "events"
_PARTITIONS: Final = 3
_PROCESSES: Final = ("mirror1", "mirror2")
_SESSION_MS: Final = 6000
#: How long the source is cut off, so that records come that the mirror has not read. `PylogdMirrorBehind` is for more.
_CUT_SECONDS: Final = 3.0
#: Larger batches are refused. A marker that ends a transaction has 78 bytes, a batch with a record of the test more.
_TOO_SMALL: Final = "80"
#: Bytes that each worker copies in a second: a tenth of what comes, or less.
_TOO_SLOW: Final = 100
_SECONDS: Final = 60.0


@contextmanager
def mirror(folder: Path) -> Iterator[Scene]:
    """Run a mirror that can fail."""
    with LocalZooKeeper(folder / "zookeeper", sync=False) as store, ExitStack() as running:
        drill = MirrorDrill(folder, store, running)
        yield Scene(MIRROR, drill.targets, drill.faults())


class MirrorDrill:
    """The faults of two processes, and of the clusters between which they copy."""

    def __init__(self, folder: Path, store: LocalZooKeeper, running: ExitStack) -> None:
        """running: ends what is started here."""
        self.targets = dict(zip(_PROCESSES, free_ports(len(_PROCESSES)), strict=True))
        self._folder, self._store, self._running = folder, store, running
        self._file = folder / "mirror.toml"
        self._source, self._target = (self._end(name) for name in ("source", "target"))
        with Admin(self._source.address) as admin:
            admin.create_topic(TOPIC, _PARTITIONS, 1)
        self._write_file()
        self._processes: dict[str, MirrorProcess] = {}
        running.callback(self._kill_all)
        self._start_all()
        self._writer = Writer(self._source.address, [(TOPIC, index) for index in range(_PARTITIONS)])
        self._writer.start()
        running.callback(self._end_writer)
        until(self._is_copied, "that the topic is at the target", self._processes[_PROCESSES[0]].log)

    def faults(self) -> list[Fault]:
        """Return all faults, in the order in which they are tried."""
        behind = frozenset({"PylogdMirrorBehind"})
        down = frozenset({"PylogdMirrorDown"})
        text = self._file.read_text()
        return [
            Fault("the limit of a mirror's route is too low", lambda: self._write_file(limit=_TOO_SLOW),
                  self._write_file, behind),
            Fault("the mirror's target hangs (SIGSTOP)", self._target.broker.pause, self._target.broker.resume,
                  frozenset({"PylogdMirrorSetAside"}), behind),
            Fault("the mirror's target is killed", self._target.broker.kill, self._target.crash,
                  frozenset({"PylogdMirrorSetAside"}), behind),
            Fault("the mirror's target refuses a topic's batches as too large", lambda: self._limit(_TOO_SMALL),
                  lambda: self._limit(None), frozenset({"PylogdMirrorSetAside"}), behind),
            Fault("the mirror's source is cut off, and deletes records meanwhile", self._delete_unread, self._go_on,
                  frozenset({"PylogdMirrorLost"}), behind),
            Fault("a second route of the mirror leads back", lambda: self._write_file(with_return=True),
                  self._write_file, frozenset({"PylogdMirrorRefused"})),
            Fault("the mirror's file is damaged", lambda: self._file.write_text(f"{text}\n[odd"), self._write_file,
                  frozenset({"PylogdMirrorFileInvalid"})),
            Fault("ZooKeeper of a mirror hangs (SIGSTOP)", self._store.pause, self._store.resume, down, behind),
            Fault("all processes of a mirror are killed", self._kill_all, self._start_all, down, behind),
        ]  # fmt: skip

    def _end(self, name: str) -> End:
        end = End(self._folder, name)
        self._running.callback(end.close)
        return end

    def _write_file(self, *, limit: int = 0, with_return: bool = False) -> None:
        """Write the mirror's file.

        limit: bytes that a worker may copy in a second; 0 is none. with_return: with a route back to the source.
        """
        ends = {"source": self._source.mirrors_address, "target": self._target.mirrors_address}
        # Settings of topics do not follow the source, so that the target can have a limit of its own.
        route = {
            "source": "source",
            "target": "target",
            "topics": [TOPIC],
            "sync.configs": False,
            "bytes.per.second": limit,
        }
        routes = [route, {**route, "source": "target", "target": "source"}][: 2 if with_return else 1]
        store = f'zookeeper.connect = "{self._store.hosts}"\nzookeeper.session.timeout.ms = {_SESSION_MS}'
        write_file(self._file, ends, routes, store)

    def _start_all(self) -> None:
        for name, port in self.targets.items():
            process = MirrorProcess(self._file, self._folder / f"{name}.log", "--listen", f"127.0.0.1:{port}")
            self._processes[name] = process
            process.wait()

    def _kill_all(self) -> None:
        while self._processes:
            self._processes.popitem()[1].kill()

    def _end_writer(self) -> None:
        self._writer.stopping.set()
        self._writer.join(_SECONDS)

    def _is_copied(self) -> bool:
        copied = 'pylogd_mirror_copied_records_total{route="source-target"}'
        return all(process.metric(copied) > 0 for process in self._processes.values())

    def _limit(self, size: str | None) -> None:
        """Limit the size of batches of the topic at the target."""
        with Admin(self._target.address) as admin:
            admin.alter_configs("topic", TOPIC, {"max.message.bytes": size})

    def _delete_unread(self) -> None:
        self._source.proxy.cut()
        time.sleep(_CUT_SECONDS)
        with Admin(self._source.address) as admin:
            admin.delete_records({TopicPartition(TOPIC, index): -1 for index in range(_PARTITIONS)})
        self._source.proxy.mend()

    def _go_on(self) -> None:
        """Nothing is left to be put right: what is lost stays lost, and the alert ends after a while."""
