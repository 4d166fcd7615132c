"""How long a program without a broker waits when it writes to the disk of the laggards' experiment.

    python -m bench.kuaishou.bare [--seconds 30] [--rounds 3] [--write]

Prints a table; `--write` writes it to bench/BARE_WRITES.md.

A small program in a group of the same size appends 10 kB at a time, 8 MB/s in all, to four files by turns, as a broker
does, with one call each, and measures each call. Beside it three threads read old files from the disk, a MiB at a time,
together no quicker than `--rates` say (MB/s; 0: none reads). It writes in three ways: as the kernel likes; having the
kernel begin to write ten times a second (`sync_file_range`), up to the last byte; and the same up to the last whole
page, as a broker does for busy disks. So what is left of a broker's waits is told from what the kernel makes any
program wait.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from bench.kuaishou import laggards
from bench.kuaishou.clients import percentile
from bench.kuaishou.lab import Laboratory, laboratory, slow_down
from bench.machine import machine
from pylogd.log.write_back import WRITE, sync_file_range
from tests.pages import write_page

RECORD: Final = 10_000
FILES: Final = 4
OLD: Final = 3
OLD_BYTES: Final = 300_000_000
_MIB: Final = 1 << 20
_INTERVAL: Final = 0.1
REPORT: Final = Path(__file__).parents[1] / "BARE_WRITES.md"
_HEADER: Final = (
    "| read, MB/s | utilisation, % | written | p50, ms | p99, ms | p99.9, ms | longest, ms | waited, s |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)
WAYS: Final = ("kernel", "early", "early, whole pages")


def write(folder: Path, way: str, seconds: float) -> list[float]:
    """Append for a while. Return the seconds that each call took."""
    fds = [os.open(folder / f"new{number}", os.O_RDWR | os.O_CREAT | os.O_TRUNC) for number in range(FILES)]
    ends, data, taken = [0] * FILES, os.urandom(RECORD), []
    done = threading.Event()
    thread = threading.Thread(target=_hand_over, args=(fds, ends, way, done))
    thread.start()
    begun, number = time.monotonic(), 0
    while (due := begun + number * RECORD / laggards.LIVE_RATE) < begun + seconds:
        time.sleep(max(due - time.monotonic(), 0))
        at = number % FILES
        before = time.monotonic()
        os.pwrite(fds[at], data, ends[at])
        taken.append(time.monotonic() - before)
        ends[at] += RECORD
        number += 1
    done.set()
    thread.join()
    for fd in fds:
        os.close(fd)
    return sorted(taken)


def _hand_over(fds: list[int], ends: list[int], way: str, done: threading.Event) -> None:
    assert sync_file_range is not None
    handed = [0] * len(fds)
    while way != WAYS[0] and not done.wait(_INTERVAL):
        for at, fd in enumerate(fds):
            end = ends[at] if way == WAYS[1] else ends[at] & -mmap.PAGESIZE
            if end > handed[at]:
                sync_file_range(fd, handed[at], end - handed[at], WRITE)
                handed[at] = end


class Readers:
    """Threads that read old files, together at most `rate` bytes a second."""

    def __init__(self, folder: Path, rate: float) -> None:
        self._rate = rate
        self._tokens, self._at = 0.0, time.monotonic()
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.read = 0
        paths = [folder / f"old{number}" for number in range(OLD if rate else 0)]
        self._threads = [threading.Thread(target=self._work, args=(path,)) for path in paths]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them."""
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _work(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        position, buffer = 0, bytearray(1 << 17)
        while not self._done.is_set():
            self._wait()
            if position >= OLD_BYTES:  # from the begin again
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                position = 0
            os.posix_fadvise(fd, position, _MIB, os.POSIX_FADV_WILLNEED)
            end = position + _MIB
            while position < end and (count := os.preadv(fd, [buffer], position)):
                position += count
                self.read += count
        os.close(fd)

    def _wait(self) -> None:
        """Wait until a MiB may be read."""
        while not self._done.is_set():
            with self._lock:
                now = time.monotonic()
                self._tokens = min(self._tokens + (now - self._at) * self._rate, _MIB)
                self._at = now
                if self._tokens > 0:
                    self._tokens -= _MIB
                    return
            time.sleep(0.002)


def work(folder: Path, way: str, rate: float, seconds: float) -> None:
    """Do one run inside the group, and print its result. Waits for a line once the old files are there."""
    for number in range(OLD):
        with (folder / f"old{number}").open("wb") as file:
            for _ in range(OLD_BYTES // _MIB + 1):
                file.write(os.urandom(_MIB))
    print("ready", flush=True)
    sys.stdin.readline()
    readers = Readers(folder, rate)
    taken = write(folder, way, seconds)
    readers.stop()
    marks = {f"p{share * 100:g}": percentile(taken, share) * 1000 for share in (0.5, 0.99, 0.999, 1.0)}
    print(json.dumps({**marks, "waited": sum(one for one in taken if one > 0.005), "read": readers.read / seconds}))


def run(lab: Laboratory, way: str, rate: float, seconds: float) -> dict[str, Any]:
    """Do one run on a new disk."""
    disk, group = lab.disk("data", laggards.DISK), lab.group("writer")
    group.limit_memory(laggards.MEMORY)
    group.count(disk.number)
    disk.limit_dirty(laggards.MEMORY // 8)
    command = [*group.prefix, sys.executable, "-m", "bench.kuaishou.bare", "--work", str(disk.mount), way]
    command += [str(rate), "--seconds", str(seconds)]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    lab.callback(child.kill)
    assert child.stdin is not None and child.stdout is not None
    child.stdout.readline()
    group.drop_page_cache()
    slow_down(disk, group, laggards.READ_LIMIT)
    busy, begun = disk.busy_seconds(), time.monotonic()
    child.stdin.write("go\n")
    child.stdin.flush()
    output = child.stdout.readline()
    used = 100 * (disk.busy_seconds() - busy) / (time.monotonic() - begun)
    child.wait()
    return {**json.loads(output), "utilisation": used}


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", default="0,29,31,60", help="MB/s that are read, with commas between")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    parser.add_argument("--work", nargs=3, metavar=("FOLDER", "WAY", "RATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(Path(options.work[0]), options.work[1], float(options.work[2]), options.seconds)
        return
    rows = [_HEADER]
    for _ in range(options.rounds):
        for rate in options.rates.split(","):
            for way in WAYS:
                with laboratory() as lab:
                    rows.append(_row(way, run(lab, way, float(rate) * 1e6, options.seconds)))
                print(rows[-1], flush=True)
    if options.write:
        where = machine("")
        how = (
            f"By `python -m bench.kuaishou.bare --seconds {options.seconds:g} --rounds {options.rounds}`, whose "
            f"docstring explains it. {time.strftime('%Y-%m-%d')}, commit {where['commit']}, {where['cores']} cores "
            f"({where['processor']}), {where['system']}, load {os.getloadavg()[0]:.1f} at the end."
        )
        table = "\n".join(rows)
        write_page(REPORT, [f"# How long writes wait beside readers, without a broker\n\n{how}\n\n{table}"])


def _row(way: str, one: dict[str, Any]) -> str:
    marks = " | ".join(f"{one[name]:.1f}" for name in ("p50", "p99", "p99.9", "p100"))
    return f"| {one['read'] / 1e6:.1f} | {one['utilisation']:.0f} | {way} | {marks} | {one['waited']:.2f} |"


if __name__ == "__main__":
    main()
