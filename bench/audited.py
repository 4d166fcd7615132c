"""The cost of audited messages for their producer, without and with a journal. Writes AUDITED.md with `--write`.

    python -m bench.audited [--rounds 12] [--messages 150000] [--write]

Each sample is a process that sends messages of 200 bytes to a pylogd broker and flushes: with `Producer` (bare), with
`AuditedProducer` (audited), and with `AuditedProducer(journal=...)`, which is synced by a thread each second as by
default (journal). The samples of a round follow each other, in another order each round. Measured is the processor time
of the sending process, with all of its threads, and the time until everything is flushed. "one value": all messages are
equal; "distinct values": all differ; "keyed": with one of 1,000 keys and a time stamp each, to four partitions, as
`pylogd demo` sends.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.before_after import interval
from bench.machine import machine
from bench.peers import running
from pylogd.client import Admin, AuditedProducer, Producer
from tests.pages import write_page

REPORT: Final = Path(__file__).with_name("AUDITED.md")
_SIZE: Final = 200
_KEYS: Final = [b"key-%d" % number for number in range(1000)]
_PARTITIONS: Final = {"one value": 1, "distinct values": 1, "keyed": 4}
_HOW: Final = ("bare", "audited", "journal")


class Sample(NamedTuple):
    """Seconds for a million messages: of the processor, and on the clock."""

    cpu: float
    wall: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and with `--write` replace the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--messages", type=int, default=150_000)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", nargs=4, metavar=("HOW", "WHAT", "ADDRESS", "FOLDER"), help=argparse.SUPPRESS)
    said = parser.parse_args(arguments)
    if said.child:
        how, what, address, folder = said.child
        print(*_send(how, what, address, Path(folder), said.messages))
        return
    rows = _measure(said.rounds, said.messages)
    lines = _page(rows, said.rounds, said.messages)
    print("\n".join(lines))
    if said.write:
        write_page(REPORT, lines)


def _measure(rounds: int, messages: int) -> list[str]:
    """Return the rows of the table."""
    found = []
    with tempfile.TemporaryDirectory(prefix="pylogd-audited-") as name, running("pylogd", Path(name)) as peer:
        with Admin(peer.address) as admin:
            for what, partitions in _PARTITIONS.items():
                admin.create_topic(_topic(what), partitions, 1)
        for what in _PARTITIONS:
            samples: dict[str, list[Sample]] = {how: [] for how in _HOW}
            for number in range(rounds):
                for how in _order(number):
                    samples[how].append(_child(how, what, peer.address, name, messages))
            found += _rows(what, samples)
    return found


def _order(number: int) -> Sequence[str]:
    """Return the order of a round: each sample is first, second and last equally often."""
    at = number % len(_HOW)
    turned = (*_HOW[at:], *_HOW[:at])
    return turned if number // len(_HOW) % 2 else turned[::-1]


def _rows(what: str, samples: dict[str, list[Sample]]) -> list[str]:
    rows = []
    for how in _HOW:
        cells = [
            f"{median(each.cpu for each in samples[how]):.2f}",
            f"{median(each.wall for each in samples[how]):.2f}",
        ]
        for other in ("bare", "audited"):
            pairs = zip(samples[how], samples[other], strict=True)
            cells.append(interval([one.cpu / two.cpu for one, two in pairs]) if _costs_more(how, other) else "")
        rows.append(f"| {what} | {how} | {' | '.join(cells)} |")
    return rows


def _costs_more(how: str, other: str) -> bool:
    return _HOW.index(how) > _HOW.index(other)


def _page(rows: Sequence[str], rounds: int, messages: int) -> list[str]:
    return [
        "# What audited messages cost their producer",
        "",
        f"By `python -m bench.audited --rounds {rounds} --messages {messages}`; its docstring explains the method.",
        "Medians of seconds for a million messages of 200 bytes; ratios of processor time with 95 % confidence",
        "intervals. Where an interval has 1 in it, the row is a draw.",
        "",
        "| messages | producer | processor (s) | until flushed (s) | to bare | to audited |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *rows,
        "",
        "Measured on {cores} cores ({processor}), {memory}, {system}, Python {python}, at commit {commit}.".format(
            **machine("")
        ),
        f"The load average was {os.getloadavg()[0]:.0f}.",
    ]


def _topic(what: str) -> str:
    return what.replace(" ", "-")


def _child(how: str, what: str, address: str, folder: str, messages: int) -> Sample:
    command = [
        sys.executable,
        "-m",
        "bench.audited",
        "--messages",
        str(messages),
        "--child",
        how,
        what,
        address,
        folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{how}, {what}:\n{done.stderr}")
    return Sample(*map(float, done.stdout.split()))


def _send(how: str, what: str, address: str, folder: Path, count: int) -> Sample:
    """Send messages. Return the seconds for a million of them."""
    topic = _topic(what)
    values = [bytes(_SIZE)] * count if what == "one value" else [b"%0*d" % (_SIZE, number) for number in range(count)]
    journal = folder / "audit.journal" if how == "journal" else None
    with Producer(address) as producer, AuditedProducer(producer, journal=journal) as audited:
        send: Callable[..., object] = producer.send if how == "bare" else audited.send
        for _ in range(1000):  # connected, and the interpreter is warm
            send(topic, values[0])
        producer.flush()
        begun, cpu = time.perf_counter(), time.process_time()
        if what == "keyed":
            for number, value in enumerate(values):
                send(topic, value, _KEYS[number % len(_KEYS)], timestamp=1_700_000_000_000 + number)
        else:
            for value in values:
                send(topic, value)
        producer.flush()
        scale = 1e6 / count
        return Sample((time.process_time() - cpu) * scale, (time.perf_counter() - begun) * scale)


if __name__ == "__main__":
    main()
