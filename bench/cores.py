"""What `pylogd broker --workers N` can serve on larger machines, calculated from parts that are measured on this one.

    python -m bench.cores [--write]

Workers share nothing but the machine and the metadata store. So four things bound N workers: processor time, memory
bandwidth, memory, and the metadata store. Measured here: processor time for a message (WORKERS.md, two workers), how
many bytes a second one core and both cores copy in memory, and what an idle connection takes. Memory for a worker is
that of docs/workers.md. Everything else is arithmetic, and the page shows it. The clients are on other machines.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import re
import statistics
import time
from pathlib import Path
from typing import Final

from tests.pages import circumstances, write_page

_HERE: Final = Path(__file__).parent
REPORT: Final = _HERE / "CORES.md"
_CORES: Final = (1, 2, 4, 16, 64)
_SIZE: Final = 200
#: Times that a record's bytes cross memory: the network card writes them, recv reads and writes, the CRC reads, the
#: write to the page cache reads and writes, the disk reads. Sending one consumer's copy: sendfile and the card read.
_CROSSINGS_IN, _CROSSINGS_OUT = 7, 2
_BUFFER: Final = 256 << 20
_SECONDS: Final = 1.0
_FIRST_MB, _FURTHER_MB, _STORE_MB = 45.0, 14.5, 11.5
_CONNECTION_KB: Final = 1.9
_CLIENTS: Final = 10_000
#: A network card of so many bits a second, each way, as machines of this size have.
_CARD_BITS: Final = 100e9


def copied(seconds: float) -> float:
    """Return how many bytes a second one process copies between buffers that no cache holds."""
    source, target = ctypes.create_string_buffer(_BUFFER), ctypes.create_string_buffer(_BUFFER)
    ctypes.memset(source, 1, _BUFFER)
    ctypes.memset(target, 1, _BUFFER)
    begun, count = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        ctypes.memmove(target, source, _BUFFER)
        count += 1
    return count * _BUFFER / (time.monotonic() - begun)


def bandwidth(processes: int, rounds: int = 5) -> float:
    """Return the bytes a second that cross memory while so many processes copy: each byte is read and written."""
    with multiprocessing.Pool(processes) as pool:
        return statistics.median(2 * sum(pool.map(copied, [_SECONDS] * processes)) for _ in range(rounds))


def microseconds() -> float:
    """Return the processor time of a message with two workers, from WORKERS.md."""
    row = re.search(
        r"processor time for a message, us \| [\d.]+ \| ([\d.]+)", (_HERE / "WORKERS.md").read_text("utf-8")
    )
    assert row is not None
    return float(row.group(1))


def report(cost: float, one: float, two: float) -> list[str]:
    """Return the page. cost: microseconds of a core for a message. one, two: bytes a second of one core and of two."""
    crossings = _SIZE * (_CROSSINGS_IN + _CROSSINGS_OUT)
    lines = [
        "# Workers on larger machines: a calculation", "",
        f"By `python -m bench.cores`; its docstring says what is measured and what is assumed. {circumstances()}", "",
        f"Measured: {cost:.2f} us of a core for a message of {_SIZE} bytes (two workers, batches of 10: WORKERS.md); "
        f"{one / 1e9:.1f} GB/s cross memory when one core copies, {two / 1e9:.1f} when two do. Calculated: a message "
        f"that comes in and goes to one consumer crosses memory {_CROSSINGS_IN + _CROSSINGS_OUT} times: {crossings:,} "
        "bytes.",
        "", "The clients are on other machines, so all cores serve. Each row assumes as many workers as cores, with "
        "partitions spread evenly.", "",
        "| cores and workers | messages/s by processor | MB/s of values in | memory bandwidth needed, GB/s | share of "
        "a 100 Gbit/s card | memory for workers, MB | with 10,000 clients on each worker, MB |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for cores in _CORES:
        rate = cores / cost * 1e6
        memory = _FIRST_MB + (cores - 1) * _FURTHER_MB + (_STORE_MB if cores > 1 else 0)
        clients = memory + cores * _CLIENTS * _CONNECTION_KB / 1000
        lines.append(
            f"| {cores} | {rate:,.0f} | {rate * _SIZE / 1e6:,.0f} | {rate * crossings / 1e9:,.1f} | "
            f"{rate * _SIZE * 8 / _CARD_BITS:.0%} | {memory:,.0f} | {clients:,.0f} |"
        )
    return [
        *lines, "", "What this says:", "",
        f"- **Processor time** is the bound. At 64 cores memory bandwidth needed is "
        f"{64 / cost * 1e6 * crossings / 1e9:,.0f} GB/s; compare it with the machine's own (a socket with 8 channels "
        "of DDR4-3200 has 205 GB/s by its data sheet; this was not measured).",
        "- **Connections**: a client connects to each worker that leads one of its partitions. With partitions on all "
        "workers, N workers have N times the connections of one broker, so fewer and larger workers suit many small "
        "clients.",
        "- **Sessions**: each worker is a broker of its own at the metadata store. A change of a topic costs each "
        "worker one read, and a worker that comes or goes one to three (`tests/scale`). 64 workers cost what 64 "
        "brokers cost.",
        "- **Not in it**: larger batches cost less for a message (`RESULTS.md`), TLS and compression checks more. "
        "Caches shared by 64 cores, and memory of two sockets, are not measured.",
    ]  # fmt: skip


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    options = parser.parse_args()
    lines = report(microseconds(), bandwidth(1), bandwidth(2))
    print("\n".join(lines))
    if options.write:
        write_page(REPORT, lines)


if __name__ == "__main__":
    main()
