"""The verdicts of an audit service (`pylogd audit serve`): windows by topic and stage. Needs the extra `audit`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from pylogd.services.audit.judging import Verdict
from pylogd.services.audit.report import Row, as_svg
from pylogd.web.client import open_url, read_body

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 32 << 20
_MOST_ROWS: Final = 20_000  # the most rows, which are the latest ones
_USUAL_MS: Final = 60_000
VERDICTS: Final = tuple(str(verdict) for verdict in Verdict)


class StageSummary(NamedTuple):
    """The number of windows with each verdict, for a topic at a stage, and the sums of their messages."""

    topic: str
    stage: str
    verdicts: Mapping[str, int]
    reported: int
    missing: int
    lost: int
    duplicates: int


class AuditReader:
    """Reads the HTTP API of an audit service. Its calls block: use a thread."""

    def __init__(self, url: str) -> None:
        """`url` is that of the service, such as `http://localhost:8090/`."""
        self._url = url.rstrip("/") + "/windows.json"

    def read(self) -> Audited:
        """Return the windows that have a verdict. Raises OSError, ValueError."""
        with open_url(self._url, _SECONDS) as answer:
            return Audited(json.loads(read_body(answer, _MOST_BYTES)))


class Audited:
    """The windows that a service reported.

    stages: the stages in their order.
    topics: the topics, sorted.
    """

    def __init__(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Raises ValueError if the text is not an answer of an audit service."""
        try:
            rows = [Row.from_document(one) for one in documents]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not an answer of an audit service: {error!r}") from None
        self.left_out = max(len(rows) - _MOST_ROWS, 0)
        self.rows = sorted(rows, key=lambda row: row.start_ms)[self.left_out :]
        self.stages = list(dict.fromkeys(row.stage for row in rows))  # a service lists them in order
        self.topics = sorted({row.topic for row in self.rows})

    def summary(self) -> list[StageSummary]:
        """Return the counts of each topic at each stage."""
        found = []
        for topic in self.topics:
            for stage in self.stages:
                mine = [row for row in self.rows if row.topic == topic and row.stage == stage]
                counts = Counter(str(row.judgement.verdict) for row in mine)
                sums = (sum(getattr(row.judgement, name) for row in mine)
                        for name in ("reported", "missing", "lost", "duplicates"))  # fmt: skip
                found.append(StageSummary(topic, stage, counts, *sums))
        return found

    def of(self, topic: str) -> list[Row]:
        """Return the windows of a topic, the oldest first."""
        return [row for row in self.rows if row.topic == topic]

    def chart(self, topic: str) -> str:
        """Return a chart of a topic's windows as SVG."""
        rows = self.of(topic)
        return as_svg(rows, self.stages, _width_ms(rows))


def _width_ms(rows: Sequence[Row]) -> int:
    """Return the length of windows: the least time between two windows."""
    starts = sorted({row.start_ms for row in rows})
    return min((after - before for before, after in pairwise(starts)), default=_USUAL_MS)
