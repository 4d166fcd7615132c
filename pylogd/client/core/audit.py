"""The data of audited producers: the stamp on each message, and the reports of delivered messages.

Rules: stamps and reports are read from topics that others may write to, so `decode` checks every field. This module
must not know who sends, counts or compares messages.
Source: the Kafka paper (NetDB 2011), section 3.3, "auditing".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError

#: The name of the header with a message's stamp.
HEADER: Final = "pylogd.audit"
#: The topic to which producers report.
AUDIT_TOPIC: Final = "pylogd-audit"
#: The length of a window in milliseconds.
WINDOW_MS: Final = 60_000

_MOST_NUMBERS: Final = 1 << 32  # the most numbers in a report; no window has more messages
_MOST: Final = (1 << 63) - 1


class NotStamped(PylogdError):
    """Raised for a header that is not the stamp of an audited producer."""


class InvalidReport(PylogdError):
    """Raised for a record of the audit topic that can't be read as a producer's report."""


class Stamp(NamedTuple):
    """The time, server and producer of a message; `number` counts a producer's messages to a topic from 0."""

    time_ms: int
    server: str
    producer: str
    number: int

    def encode(self) -> bytes:
        """Return the header's value."""
        return f"{self.time_ms}/{self.producer}/{self.number}/{self.server}".encode()

    @classmethod
    def decode(cls, value: bytes) -> Stamp:
        """Return the stamp in a header's value. Raises NotStamped."""
        try:
            moment, producer, number, server = value.decode().split("/", 3)
            stamp = cls(int(moment), server, producer, int(number))
        except ValueError as error:
            raise NotStamped(f"{value!r} is not the stamp of an audited producer") from error
        if not (0 <= stamp.time_ms <= _MOST and 0 <= stamp.number <= _MOST):
            raise NotStamped(f"{value!r} has a time or a number that no audited producer gives")
        return stamp


@dataclass(frozen=True, slots=True)
class Report:
    """How many messages a producer delivered to a topic in a window, beyond its reports before this one.

    first, last: the first and last number of the producer's messages in the window; both are -1 if they are unknown.
    failed: the ranges of these numbers (first and last) whose messages were not delivered, or are not known to be.
    recovered: whether the report was made from the journal of a producer that ended without reporting. Then `count` is
    0, and it is unknown which of the messages from `first` to `last`, except `failed`, were delivered.
    """

    producer: str
    server: str
    topic: str
    window_start_ms: int
    window_ms: int
    count: int
    number: int
    first: int = -1
    last: int = -1
    failed: Sequence[tuple[int, int]] = ()
    recovered: bool = False

    def encode(self) -> bytes:
        """Return the report as a message of the audit topic."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes | None) -> Report:
        """Return the report in a message. Fields that this version does not know are ignored. Raises InvalidReport."""
        try:
            document = json.loads(value or b"")
            texts = {name: _checked(document[name], str) for name in ("producer", "server", "topic")}
            names = ("window_start_ms", "window_ms", "count", "number")
            numbers = {name: _checked(document[name], int) for name in names}
            numbers |= {name: _checked(document.get(name, -1), int, -1) for name in ("first", "last")}
            failed = tuple(_ranges_of(document.get("failed") or ()))
            report = cls(**texts, **numbers, failed=failed, recovered=bool(document.get("recovered", False)))
            if report.window_ms < 1 or report.last - report.first >= _MOST_NUMBERS or report.last < report.first:
                raise ValueError("its window or its numbers are impossible")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidReport(f"not the report of an audited producer: {error!r}") from error
        return report


def _checked(value: Any, kind: type, least: int = 0) -> Any:
    if type(value) is not kind or (isinstance(value, int) and not least <= value <= _MOST):
        raise ValueError(f"{value!r} is not what a report has there")
    return value


def _ranges_of(pairs: Any) -> Iterator[tuple[int, int]]:
    for first, last in pairs:
        if not 0 <= _checked(last, int) - _checked(first, int) < _MOST_NUMBERS:
            raise ValueError(f"{first} to {last} is not a range of numbers")
        yield first, last


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of numbers, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
