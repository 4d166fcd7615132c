"""Time every page of a console on a recorded cluster: `python -m tests.console [--results FILE]`.

12,000 topics, 200,000 partitions and 10,000 groups are served by `tests.console.recorded`, with which the console
shares the machine; a mirror, an audit and a table by `tests.console.services`. Each page is asked for again and again
while samples are taken. Exit status 1 if a page takes a second or more, or the console more than 300 MB.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from pylogd.local.broker import pylogd_command
from pylogd.local.launch import bound
from tests.console.recorded import PARTITIONS, TOPICS, Record
from tests.console.services import make_table, served, write_configuration
from tests.pages import circumstances, write_page

MOST_SECONDS: Final = 1.0
MOST_MB: Final = 300.0
_SAMPLES: Final = 3
_ROUNDS: Final = 12
_PATIENCE: Final = 900.0
_BUSY: Final = "team-00.stream-00000"


class Timed(NamedTuple):
    """How long a page took, in seconds, and its size in bytes."""

    page: str
    median: float
    longest: float
    size: int


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a process; yield it and the first line that it prints."""
    with log.open("w") as file:
        process = subprocess.Popen(bound(command, signal.SIGTERM), stdout=subprocess.PIPE, stderr=file, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{command} did not start:\n{log.read_text()}")
        yield process, line
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def memory_mb(pid: int, field: str) -> float:
    """Return `VmRSS` or `VmHWM` of a process in megabytes of 10^6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


class PeakMemory:
    """The largest sum of the resident memory of a process and its children, sampled inside `with`."""

    _PERIOD_SECONDS = 0.02

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ended.wait(self._PERIOD_SECONDS):
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
            total = memory_mb(self._pid, "VmRSS")
            for child in children:
                with contextlib.suppress(OSError, AssertionError):  # it has ended
                    total += memory_mb(int(child), "VmRSS")
            self.mb = max(self.mb, total)


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def get(url: str, user: tuple[str, str] | None = None) -> bytes:
    """Return a page. user: name and password."""
    request = urllib.request.Request(url)
    if user is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(":".join(user).encode()).decode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
    return body


def sample_of(base: str, user: tuple[str, str] | None = None) -> tuple[int, float]:
    """Return the number of the console's last sample, and how long that took in seconds."""
    found = re.search(rb"Sample (\d+) of .*?taken in ([\d.]+) s", get(base, user))
    return (int(found[1]), float(found[2])) if found else (0, 0.0)


def wait_for_sample_of(base: str, number: int, user: tuple[str, str] | None = None) -> float:
    """Wait until a sample is complete; return how long the last one took."""
    end = time.monotonic() + _PATIENCE
    while True:
        last, took = sample_of(base, user)
        if last >= number:
            return took
        if time.monotonic() > end:
            raise SystemExit(f"sample {number} did not come within {_PATIENCE:.0f} s")
        time.sleep(0.5)


def pages(base: str) -> list[tuple[str, str]]:
    """Return the pages to time: what each shows, and its URL."""
    topics = get(f"{base}/topics?sort=partitions").decode()
    largest = re.search(r'href="(/c/[^"]*/topics/[^"]+)"', topics)
    assert largest is not None
    root = base.partition("/c/")[0]
    return [
        ("overview", base),
        ("topics", f"{base}/topics"),
        ("topics by rate", f"{base}/topics?sort=rate"),
        ("topics, the last page by size", f"{base}/topics?sort=size&reverse=1&page=240"),
        ("topics, filtered", f"{base}/topics?q=stream-0423"),
        ("the topic with the most partitions", root + largest[1]),
        ("a topic", f"{base}/topics/{_BUSY}"),
        ("groups", f"{base}/groups"),
        ("groups by lag", f"{base}/groups?sort=lag"),
        ("groups, filtered", f"{base}/groups?q=reader-04"),
        ("a group", f"{base}/groups/reader-04711"),
        ("members of a group", f"{base}/groups/reader-04711/members"),
        ("brokers", f"{base}/brokers"),
        ("a broker", f"{base}/brokers/1"),
        ("mirrors", f"{base}/mirrors"),
        ("a route of a mirror", f"{base}/mirrors/route-042"),
        ("audit", f"{base}/audit"),
        ("audit, filtered", f"{base}/audit?topic=audited-07&q=incomplete"),
        ("tables", f"{base}/tables"),
        ("a table", f"{base}/tables/lake"),
    ]


def time_pages(base: str) -> list[Timed]:
    """Ask for each page in turns, while samples go on."""
    wanted = pages(base)
    times: dict[str, list[float]] = {name: [] for name, _ in wanted}
    sizes = {}
    for _ in range(_ROUNDS):
        for name, url in wanted:
            begun = time.monotonic()
            sizes[name] = len(get(url))
            times[name].append(time.monotonic() - begun)
        time.sleep(1.0)  # so that rounds meet different parts of a sample
    return [Timed(name, sorted(some)[len(some) // 2], max(some), sizes[name]) for name, some in times.items()]


def report(found: Sequence[Timed], peak: float, took: float, share: float, sizes: str) -> list[str]:
    """Return the page of results."""
    return [
        "# The console on a large cluster",
        "",
        "Written by `make console`. A recorded cluster is served over real sockets by a process that answers",
        f"like three brokers: {sizes}.",
        "A mirror has 100 routes, an audit 18,000 windows, and a table the largest topic.",
        f"Each page was asked for {_ROUNDS} times, in turns, while samples were taken.",
        "",
        circumstances(),
        "",
        f"* Peak memory of the console and its child that reads tables: {peak:.0f} MB (bound: {MOST_MB:.0f} MB).",
        f"* A sample took {took:.1f} s; the console used {share:.0%} of a processor, for samples and pages together.",
        "",
        "| page | median, ms | longest, ms | kB |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {one.page} | {one.median * 1000:.0f} | {one.longest * 1000:.0f} | {one.size / 1000:.0f} |"
          for one in found),
    ]  # fmt: skip


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="write this page")
    parser.add_argument("--folder", type=Path, default=Path(".cache/console"))
    parser.add_argument("--old", action="store_true", help="brokers as before Kafka 3.8, without topics page by page")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    recorded = [sys.executable, "-m", "tests.console.recorded", *(["--old"] if options.old else [])]
    with (
        tempfile.TemporaryDirectory() as folder, served() as url,
        running(recorded, options.folder / "recorded.log") as (_, bootstrap),
    ):  # fmt: skip
        table = make_table(Path(folder), Record(TOPICS, PARTITIONS, 0).topics)
        config = write_configuration(Path(folder) / "console.toml", bootstrap, url, table)
        command = [*pylogd_command(), "console", "--config", str(config), "--listen", "127.0.0.1:0"]
        with running(command, options.folder / "console.log") as (console, line):
            base = line.rpartition(" ")[2] + "/c/cluster"
            begun = time.monotonic()
            with PeakMemory(console.pid) as peak:
                wait_for_sample_of(base, _SAMPLES)
                found = time_pages(base)
            took = sample_of(base)[1]
            share = processor_seconds(console.pid) / (time.monotonic() - begun)
            overview = get(base).decode()
    counts = re.findall(r"<dt>(Topics|Partitions|Groups)</dt><dd>(?:<a[^>]*>)?([\d,]+)", overview)
    lines = report(found, peak.mb, took, share, ", ".join(f"{count} {name.lower()}" for name, count in counts))
    print("\n".join(lines))
    if options.results is not None:
        write_page(options.results, lines)
    slow = [one for one in found if one.longest >= MOST_SECONDS]
    return 1 if slow or peak.mb > MOST_MB else 0


if __name__ == "__main__":
    sys.exit(main())
