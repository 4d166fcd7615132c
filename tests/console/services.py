"""Large services beside the recorded cluster: a mirror and an audit that answer by HTTP, and a table."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from pylogd.lake.tables.interface import Layout
from pylogd.lake.tables.opening import open_table
from pylogd.lake.tables.position import LoadRange
from pylogd.services.audit.judging import Judgement, Verdict
from pylogd.services.audit.report import Row

ROUTES: Final = 100
_AUDITED: Final = 20
_WINDOWS: Final = 300
_COMMITS: Final = 100
_START_MS: Final = 1_790_000_000_000


def metrics() -> str:
    """Return the metrics page of a mirror with many routes."""
    lines = ["pylogd_mirror_is_controller 1.0", "pylogd_mirror_file_is_valid 1.0"]
    for number in range(ROUTES):
        label = f'route="route-{number:03}"'
        lines += [
            f'pylogd_mirror_partitions{{{label},state="copied"}} 100.0',
            f"pylogd_mirror_lag_records{{{label}}} {number * 10}.0",
            f"pylogd_mirror_lag_seconds{{{label}}} {number / 10}",
            f"pylogd_mirror_copied_bytes_total{{{label}}} 1e+09",
            f"pylogd_mirror_copied_records_total{{{label}}} 1e+06",
        ]
    return "\n".join([*lines, ""])


def windows() -> str:
    """Return the verdicts of an audit of many windows, every hundredth of which is incomplete."""
    rows = []
    for topic in range(_AUDITED):
        for window in range(_WINDOWS):
            missing = 1 if (topic + window) % 100 == 0 else 0
            verdict = Verdict.INCOMPLETE if missing else Verdict.COMPLETE
            found = Judgement(verdict, reported=1000, received=1000 - missing, distinct=1000 - missing, missing=missing)
            rows += [
                Row(stage, f"audited-{topic:02}", _START_MS + window * 60_000, found).as_document()
                for stage in ("serving", "copy", "lake")
            ]
    return json.dumps(rows)


def make_table(folder: Path, topics: Mapping[str, int]) -> str:
    """Make a table that is behind the largest of some topics, by their partitions; return its location."""
    largest = max(topics, key=topics.__getitem__)
    location = f"parquet:{folder.resolve()}/lake"
    table = open_table(location)
    table.create(Layout())
    for number in range(_COMMITS):
        position = table.position
        ends = {(largest, index): number + 1 for index in range(topics[largest])}
        begins = {place: position.offsets.get(place, 0) for place in ends}
        table.commit(position, LoadRange(begins, ends), [], at_ms=_START_MS + number * 60_000)
    return location


@contextmanager
def served() -> Iterator[str]:
    """Answer as a mirror and as an audit; yield the URL."""
    pages = {"/metrics": metrics().encode(), "/windows.json": windows().encode()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(pages[self.path])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def write_configuration(path: Path, bootstrap: str, url: str, table: str) -> Path:
    """Write the configuration of a console with all services."""
    path.write_text(
        f'[clusters.cluster]\nbootstrap = "{bootstrap}"\nmirrors = ["{url}/metrics"]\naudit = "{url}/"\n'
        f'[clusters.cluster.tables.lake]\nlocation = "{table}"\n'
    )
    return path
