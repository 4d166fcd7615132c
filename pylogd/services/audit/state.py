"""Keep the ledger's windows and the markers in two compacted topics, so that a restart continues from them.

Strategy: the state topic has these records, as JSON, by key:

    window/STAGE/TOPIC/START    the counts of a window at a stage, and the judgement
    reports/TOPIC/START         the reports of a window
    resume                      the offsets to read from

The windows are written first, then the offsets. If the process dies in between, some rows are read again; each window
has the offsets up to which its rows are counted. Markers have a separate topic, so that jobs may be allowed to read
only this topic.

Rules: a record that can't be read is skipped, and the reader logs it. Must not know: brokers, the clock.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pyroaring import BitMap64

from pylogd.base.errors import PylogdError
from pylogd.services.audit.counting import Origin, Tally
from pylogd.services.audit.judging import Fault, Judgement, Reported, ServerCounts, Verdict
from pylogd.services.audit.windows import LedgerOptions, Saved, SavedReports, StageWindow, Taken

STATE_TOPIC: Final = "pylogd-audit-state"
MARKER_TOPIC: Final = "pylogd-audit-complete"
RESUME: Final = b"resume"
_VERSION: Final = 1


class InvalidState(PylogdError):
    """This version can't read a record of the state topic."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where to continue: the offsets by stage, topic and partition, and the offsets of the audit topic.

    trimmed, closed, topic_ids, restamped: the attributes of the ledger.
    """

    options: LedgerOptions
    stages: Mapping[str, Mapping[tuple[str, int], int]] = field(default_factory=dict)
    reports: Mapping[int, int] = field(default_factory=dict)
    trimmed: Mapping[tuple[str, str], int] = field(default_factory=dict)
    closed: Mapping[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    restamped: Collection[tuple[str, str]] = ()

    def encode(self) -> bytes:
        """Return the record's value."""
        stages: dict[str, dict[str, dict[str, int]]] = {}
        for stage, offsets in self.stages.items():
            topics = stages.setdefault(stage, {})
            for (topic, partition), offset in sorted(offsets.items()):
                topics.setdefault(topic, {})[str(partition)] = offset
        trimmed = [[stage, topic, until] for (stage, topic), until in self.trimmed.items()]
        return _dump({
            "version": _VERSION, "from_ms": self.options.from_ms, "width_ms": self.options.width_ms,
            "period_ms": self.options.period_ms, "stages": stages, "reports": _keys_as_text(self.reports),
            "trimmed": trimmed, "closed": dict(self.closed),
            "topic_ids": {stage: dict(ids) for stage, ids in self.topic_ids.items()},
            "restamped": sorted(self.restamped),
        })  # fmt: skip

    @classmethod
    def decode(cls, value: bytes, options: LedgerOptions) -> Resume:
        """Return the state in a record's value, with the record's first window and the other `options`. Raises
        InvalidState.
        """
        try:
            document = json.loads(value)
            if document["version"] != _VERSION:
                raise ValueError(f"version {document['version']}")
            return cls(
                replace(options, **{name: document[name] for name in ("from_ms", "width_ms", "period_ms")}),
                {
                    stage: {
                        (topic, int(partition)): offset
                        for topic, partitions in topics.items()
                        for partition, offset in partitions.items()
                    }
                    for stage, topics in document["stages"].items()
                },
                _keys_as_numbers(document["reports"]),
                {(stage, topic): until for stage, topic, until in document["trimmed"]},
                document["closed"],
                document.get("topic_ids", {}),  # earlier releases did not store this
                tuple((stage, topic) for stage, topic in document.get("restamped", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidState(f"can't read where to continue: {error!r}") from error


def window_key(stage: str, topic: str, start_ms: int) -> bytes:
    """Return the key of a window's record."""
    return f"window/{stage}/{topic}/{start_ms}".encode()


def records_of(taken: Taken) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of the records of windows and reports, but not of the offsets to resume from."""
    for saved in taken.windows:
        yield window_key(saved.stage, saved.topic, saved.start_ms), _dump(_window_document(saved))
    for each in taken.reports:
        reports = {producer: _report_document(report) for producer, report in each.reports.items()}
        yield f"reports/{each.topic}/{each.start_ms}".encode(), _dump({"reports": reports})


def decode_record(key: bytes, value: bytes) -> Saved | SavedReports | None:
    """Return the window or reports of a record; None for another record. Raises InvalidState."""
    try:
        kind, _, name = key.decode().partition("/")
        if kind == "window":
            stage, topic, start = name.rsplit("/", 2)
            return _saved(stage, topic, int(start), json.loads(value))
        if kind == "reports":
            topic, start = name.rsplit("/", 1)
            found = {producer: _reported(each) for producer, each in json.loads(value)["reports"].items()}
            return SavedReports(topic, int(start), found, {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidState(f"can't read the state of {key!r}: {error!r}") from error
    return None


def _window_document(saved: Saved) -> dict[str, Any]:
    window = saved.window
    assert window.judgement is not None
    return {
        "judgement": asdict(window.judgement),
        "judged_at_ms": window.judged_at_ms,
        "passed_at_ms": window.passed_at_ms,
        "revision": window.revision,
        "unstamped": window.unstamped,
        "counted": _keys_as_text(saved.counted),
        "bound": _keys_as_text(window.bound),
        "reports_bound": _keys_as_text(saved.reports_bound),
        "tallies": [
            {**origin._asdict(), "rows": tally.rows, "numbers": _dump_numbers(tally.numbers)}
            for origin, tally in window.tallies.items()
        ],
    }


def judgement_of(document: Mapping[str, Any]) -> Judgement:
    """Return the judgement in the value of a window's record (parsed JSON). Raises KeyError and similar errors."""
    found = dict(document["judgement"])
    found["verdict"] = Verdict(found["verdict"])
    found["servers"] = {server: ServerCounts(*each) for server, each in found["servers"].items()}
    found["faults"] = tuple(Fault(*each) for each in found["faults"])
    return Judgement(**found)


def _saved(stage: str, topic: str, start_ms: int, document: dict[str, Any]) -> Saved:
    tallies = {
        Origin(tuple(each["producers"]), each["at"], each["server"]): Tally(each["rows"], _numbers(each["numbers"]))
        for each in document["tallies"]
    }
    window = StageWindow(
        tallies, document.get("unstamped", 0), bound=_keys_as_numbers(document["bound"]),
        passed_at_ms=document["passed_at_ms"], touched=document["passed_at_ms"] is None,
        judgement=judgement_of(document),
        judged_at_ms=document["judged_at_ms"], revision=document["revision"],
    )  # fmt: skip
    counted = _keys_as_numbers(document["counted"]) or {}
    return Saved(stage, topic, start_ms, window, counted, _keys_as_numbers(document["reports_bound"]))


def _report_document(report: Reported) -> dict[str, Any]:
    return {
        "server": report.server,
        "seen": sorted(report.seen),
        **{name: _dump_numbers(getattr(report, name)) for name in ("settled", "failed", "given")},
    }


def _reported(document: Mapping[str, Any]) -> Reported:
    numbers = [_numbers(document[name]) for name in ("settled", "failed", "given")]
    return Reported(document["server"], set(document["seen"]), *numbers)


def _dump_numbers(numbers: BitMap64) -> str:
    numbers.run_optimize()
    return base64.b64encode(numbers.serialize()).decode()


def _numbers(text: str) -> BitMap64:
    return BitMap64.deserialize(base64.b64decode(text))


def _keys_as_text(offsets: Mapping[int, int] | None) -> dict[str, int] | None:
    return None if offsets is None else {str(partition): offset for partition, offset in sorted(offsets.items())}


def _keys_as_numbers(document: Mapping[str, int] | None) -> Any:
    return None if document is None else {int(partition): offset for partition, offset in document.items()}


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
