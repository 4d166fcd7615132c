"""Copiers with Kafka's own Java client: members of a group with the classic protocol, or with that of KIP-848.

Strategy: as `workload`'s copiers. Each has a process of its own, which is driven by lines of JSON
(`conformance/java/Transacting.java`). What cannot go on is killed in the middle of its transaction, and so is one now
and then without a reason: it goes on with the same transactional id, as another member.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from conformance import java_tools
from conformance.checks import HERE
from conformance.transacting.driver import Driver
from tests.transactions_check.history import Action, Outcome, Value
from tests.transactions_check.workload import (
    JAVA_CLASSIC,
    JAVA_CONSUMER,
    SOURCES,
    TRANSACTION_TIMEOUT,
    CopyGroup,
    Load,
)

_SOURCE: Final = HERE / "java" / "Transacting.java"
#: Small and soon ready: they are started often.
_JAVA: Final = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_MOST_RECORDS: Final = 20
_POLL_MS: Final = 200
_COMMIT_SECONDS: Final = 30.0
#: How often a process is killed in a transaction, and how often it leaves. To start one takes a second of a core.
_KILLED, _LEAVES = 0.002, 0.002


def command() -> list[str]:
    """Return the command of a copier, which is compiled if need be, with jars that are downloaded if need be."""
    return java_tools.compiled(_SOURCE, *_JAVA)


class JavaFailed(Exception):
    """An operation was answered with an error: the classes of an exception and of its causes."""


class JavaCopier:
    """One member of a group, and the producer of its copies."""

    def __init__(self, load: Load, name: str, rng: random.Random, group: CopyGroup, errors: Path) -> None:
        self.load, self.name, self.rng, self.group = load, name, rng, group
        self.number = 0
        self._errors = errors
        self._driver: Driver | None = None

    def _do(self, what: str, **fields: Any) -> Any:
        """Do one operation. Raises JavaFailed, and RuntimeError if the process hangs or has ended."""
        assert self._driver is not None
        answer = self._driver(what, **fields)
        if isinstance(answer, str) and answer.startswith("error "):
            raise JavaFailed(answer[len("error ") :])
        return answer

    def open(self) -> None:
        """Begin with a new process: the transaction of the predecessor is ended first."""
        self._driver = Driver([*command(), self.load.bootstrap], self._errors)
        self._do("producer", name="p", id=f"check-{self.name}", timeout=int(TRANSACTION_TIMEOUT * 1000))
        self._do("init", name="p")
        protocol = "classic" if self.group is JAVA_CLASSIC else "consumer"
        topics = list(SOURCES)
        self._do("consumer", name="c", group=self.group.name, protocol=protocol, topics=topics, most=_MOST_RECORDS)

    def kill(self) -> None:
        """End the process without a word."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def close(self) -> None:
        """Leave the group, and end."""
        if self._driver is not None:
            self._do("close", name="c")
        self.kill()

    def turn(self) -> None:
        """Copy what one poll returns. Raises JavaFailed or RuntimeError if this cannot go on with this process."""
        if self._driver is None:
            self.open()
        records = self._do("records", name="c", ms=_POLL_MS)
        if records:
            self._copy(records)

    def _copy(self, records: list[tuple[str, int, int, str]]) -> None:
        load, history = self.load, self.load.history
        self.number += 1
        transaction = f"{self.name}-{self.number}"
        history.ended(transaction, Outcome.ABORTED)
        causes = [Value.decode(value.encode()) for _, _, _, value in records]
        history.step(transaction, Action.READ, read={cause.transaction for cause in causes})
        try:
            self._do("begin", name="p")
            (target,) = self.group.targets
            copies: dict[int, list[str]] = {}
            for number, (cause, (_, partition, _, _)) in enumerate(zip(causes, records, strict=True)):
                history.step(transaction, Action.SEND, number)
                value = Value(transaction, number, len(causes), cause.name).encode().decode()
                copies.setdefault(partition, []).append(value)
            for partition, values in copies.items():
                self._do("send", name="p", topic=target, partition=partition, values=values)
            self._do("offsets", name="p", offsets=_behind(records), consumer="c")
            if self.rng.random() < 0.1:
                self._go_back()
                return
        except JavaFailed as error:
            load.count(f"Java {error}")
            self._go_back()
            return
        if self.rng.random() < _KILLED:
            self.kill()
            return
        history.ended(transaction, Outcome.UNKNOWN)
        history.step(transaction, Action.COMMIT)
        self._commit()
        history.step(transaction, Action.COMMITTED)
        history.ended(transaction, Outcome.COMMITTED)

    def _go_back(self) -> None:
        """Abort, and go on behind what is committed."""
        self._do("abort", name="p")
        self._do("rewind", name="c")

    def _commit(self) -> None:
        """Commit; again if the client says that it does not know what has become of it."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while True:
            try:
                self._do("commit", name="p")
            except JavaFailed as error:
                if not str(error).startswith("TimeoutException") or time.monotonic() > deadline:
                    raise
            else:
                return


def _behind(records: list[tuple[str, int, int, str]]) -> dict[str, dict[str, int]]:
    """Return the offsets to commit: behind the last record of each partition."""
    offsets: dict[str, dict[str, int]] = {}
    for topic, partition, offset, _ in records:
        offsets.setdefault(topic, {})[str(partition)] = offset + 1
    return offsets


def copy_in(group: CopyGroup) -> Callable[[Load, str, random.Random], None]:
    """Return the work of a member of a group: copy all sources until everything is copied."""

    def copy(load: Load, name: str, rng: random.Random) -> None:
        with tempfile.TemporaryDirectory(prefix="java-copier-") as folder:
            copier = JavaCopier(load, name, rng, group, Path(folder) / "errors")
            while not load.draining.is_set():
                try:
                    copier.turn()
                    if rng.random() < _LEAVES and not load.stopping.is_set():
                        copier.close()
                except (JavaFailed, RuntimeError, OSError) as error:
                    load.count(f"Java {str(error)[:200]}")
                    copier.kill()
                    time.sleep(0.2)  # what cannot be reached is asked again at once otherwise
            copier.kill()

    return copy


copy_classic, copy_consumer = copy_in(JAVA_CLASSIC), copy_in(JAVA_CONSUMER)
