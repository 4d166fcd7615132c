"""The faults that an audit finds, and its own: what is done, which alerts have to fire, and which may fire besides."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pylogd.base.ports import free_ports
from pylogd.client import Admin, AuditedProducer, Consumer, Producer, TopicPartition
from pylogd.local.broker import BrokerProcess
from tests.alerts.prometheus import AUDIT
from tests.alerts.scene import Fault, Scene
from tests.audits import ServedAudit
from tests.chaos.workload import Worker
from tests.mirrors import MirrorProcess, until, write_file

TOPIC: Final = "flights"
_REPORTS: Final = f"{TOPIC}-audit"
_WINDOW_MS: Final = 1000
_PAUSE_SECONDS: Final = 0.1
#: How long verdicts stay in memory, and so may change. Longer than an unknown verdict takes to fire its alert.
_TIMES: Final = ("--window", "1", "--period", "5", "--grace", "2", "--late", "45")
#: How long nothing is copied: several windows, but too short for `PylogdAuditBehind`.
_UNCOPIED_SECONDS: Final = 5.0
_SECONDS: Final = 60.0
#: Sends messages, which arrive, and waits for its end before their window is over: it has not reported them.
_DYING: Final = """
import sys, time
from pylogd.client import AuditedProducer, Producer
address, topic, reports, journal = sys.argv[1:]
with Producer(address) as producer:
    audited = AuditedProducer(producer, topic=reports, window_ms=1000, journal=journal, report_interval=None)
    for number in range(10):
        audited.send(topic, b"%d" % number)
    producer.flush()
    print("ready", flush=True)
    time.sleep(3600)
"""


@contextmanager
def audit(folder: Path) -> Iterator[Scene]:
    """Run an audit that has something to find."""
    with ExitStack() as running:
        drill = AuditDrill(folder, running)
        yield Scene(AUDIT, {"audit": drill.port}, drill.faults())


class Flights(Worker):
    """Sends audited messages, slowly."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(f"audited producer at {bootstrap}")
        self._servers = bootstrap

    def work(self) -> None:
        with Producer(self._servers, linger_ms=5, delivery_timeout=_SECONDS * 5) as producer, AuditedProducer(
            producer, topic=_REPORTS, window_ms=_WINDOW_MS
        ) as audited:  # fmt: skip
            while not self.stopping.wait(_PAUSE_SECONDS):
                audited.send(TOPIC, b"a flight")


class AuditDrill:
    """The faults of an audited topic, of its copy, and of the audit. port: of the audit's metrics."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        """running: ends what is started here."""
        self.port = free_ports(1)[0]
        self._folder, self._running = folder, running
        self._serving, self._copy = (self._broker(name) for name in ("serving", "copy"))
        with Admin(self._serving.address) as admin:
            admin.create_topic(TOPIC, 1, 1)
        self._file = write_file(
            folder / "mirror.toml", {"serving": self._serving.address, "copy": self._copy.address},
            [{"source": "serving", "target": "copy", "topics": [TOPIC]}], f'metadata.store = "{folder / "store"}"',
        )  # fmt: skip
        self._start_mirror()
        running.callback(self._kill_mirror)
        until(self._is_created, "that the topic is at the target", self._mirror.log)
        self._flights = Flights(self._serving.address)
        self._flights.start()
        running.callback(self._end_flights)
        self._audit = running.enter_context(ServedAudit(
            self._serving.address, TOPIC, folder, *_TIMES, "--listen", f"127.0.0.1:{self.port}",
            "--stage", f"copy=cluster:{self._copy.address},via=mirror",
        ))  # fmt: skip
        until(lambda: self._complete("copy"), "that windows are judged", self._audit.log)

    def faults(self) -> list[Fault]:
        """Return all faults, in the order in which they are tried."""
        incomplete, behind = frozenset({"PylogdAuditIncomplete"}), frozenset({"PylogdAuditBehind"})
        down = frozenset({"PylogdAuditDown"})
        return [
            Fault("a message is sent twice", self._send_twice, self._go_on, incomplete),
            Fault("records are deleted before a mirror has copied them", self._delete_uncopied, self._go_on,
                  incomplete),
            Fault("the mirror between two audited stages is killed", self._kill_mirror, self._start_mirror, behind),
            Fault("a producer is killed before it has reported", self._lose_producer, self._report_for_it,
                  frozenset({"PylogdAuditUnknown"})),
            Fault("the audit is killed", lambda: self._audit.end(signal.SIGKILL), self._audit.start, down),
            Fault("the audited cluster hangs (SIGSTOP)", self._serving.pause, self._serving.resume, down, behind),
        ]  # fmt: skip

    def _broker(self, name: str) -> BrokerProcess:
        found = BrokerProcess(self._folder / name, self._folder / f"{name}.log")
        self._running.callback(found.kill)
        return found

    def _start_mirror(self) -> None:
        self._mirror = MirrorProcess(self._file, self._folder / "mirror.log")
        self._mirror.wait()

    def _kill_mirror(self) -> None:
        self._mirror.kill()

    def _is_created(self) -> bool:
        with Admin(self._copy.address) as admin:
            return bool(admin.describe_topic(TOPIC).partitions)

    def _end_flights(self) -> None:
        self._flights.stopping.set()
        self._flights.join(_SECONDS)

    def _complete(self, stage: str) -> int:
        """Return the number of complete windows at a stage."""
        return sum(row["verdict"] == "complete" for row in self._audit.windows(stage))

    def _go_on(self) -> None:
        """Nothing is left to be put right: the verdict stays, until its window is closed."""

    def _send_twice(self) -> None:
        """Send the next message that comes a second time, with its stamp, as a client does that retries by itself."""
        with Consumer(self._serving.address) as consumer, Producer(self._serving.address) as producer:
            partition = (TOPIC, 0)
            consumer.assign(consumer.end_offsets([partition]))
            records = until(lambda: consumer.poll(1.0), "a message")
            producer.send(TOPIC, records[0].value, partition=0, headers=records[0].headers).result(_SECONDS)

    def _delete_uncopied(self) -> None:
        """Have the source delete what the audit has counted and the mirror, which does not run, has not copied."""
        self._kill_mirror()
        time.sleep(_UNCOPIED_SECONDS)
        with Admin(self._serving.address) as admin:
            admin.delete_records({TopicPartition(TOPIC, 0): -1})
        self._start_mirror()

    @property
    def _journal(self) -> Path:
        return self._folder / "journal"

    def _lose_producer(self) -> None:
        command = [sys.executable, "-c", _DYING, self._serving.address, TOPIC, _REPORTS, str(self._journal)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
            assert dying.stdout is not None
            said = dying.stdout.readline()
            dying.kill()
        assert said == "ready\n"

    def _report_for_it(self) -> None:
        """Start a producer with the journal of the one that was killed."""
        with Producer(self._serving.address) as producer, AuditedProducer(
            producer, topic=_REPORTS, window_ms=_WINDOW_MS, journal=self._journal
        ):  # fmt: skip
            time.sleep(_WINDOW_MS / 1000)
