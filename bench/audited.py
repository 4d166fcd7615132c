"""The cost of audited messages for their producer: `AuditedProducer` beside `Producer`, in alternating pairs.

    python -m bench.audited [--pairs 12] [--messages 300000]

Each sample is a process that sends messages of 200 bytes to a pylogd broker and flushes. The two samples of a pair
follow each other in alternating order. Measured is the processor time of the sending process, with all of its threads.
"one value": all messages are equal; "distinct values": all differ; "keyed": with one of 1,000 keys and a time stamp
each, to four partitions, as `pylogd demo` sends.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers import running
from pylogd.client import Admin, AuditedProducer, Producer

_SIZE = 200
_KEYS = [b"key-%d" % number for number in range(1000)]
_PARTITIONS = {"one value": 1, "distinct values": 1, "keyed": 4}
_TARGET = 1.33


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--child", nargs=3, metavar=("HOW", "WHAT", "ADDRESS"), help=argparse.SUPPRESS)
    said = parser.parse_args(arguments)
    if said.child:
        how, what, address = said.child
        print(_send(how, what, address, said.messages))
        return
    print(f"processor seconds for a million messages, median (least to most); the target is at most {_TARGET}")
    with tempfile.TemporaryDirectory(prefix="pylogd-audited-") as folder, running("pylogd", Path(folder)) as peer:
        with Admin(peer.address) as admin:
            for what, partitions in _PARTITIONS.items():
                admin.create_topic(_topic(what), partitions, 1)
        for what in _PARTITIONS:
            pairs = []
            for number in range(said.pairs):
                found = {how: _child(how, what, peer.address, said.messages) for how in _order(number)}
                pairs.append((found["bare"], found["audited"]))
            bare, audited = zip(*pairs, strict=True)
            ratios = [one / other for other, one in pairs]
            print(f"{what:16} bare {_median(bare)}   audited {_median(audited)}   ratio {_median(ratios)}")


def _topic(what: str) -> str:
    return what.replace(" ", "-")


def _order(number: int) -> tuple[str, str]:
    return ("bare", "audited") if number % 2 else ("audited", "bare")


def _child(how: str, what: str, address: str, messages: int) -> float:
    command = [sys.executable, "-m", "bench.audited", "--messages", str(messages), "--child", how, what, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"{how}, {what}:\n{done.stderr}")
    return float(done.stdout)


def _send(how: str, what: str, address: str, count: int) -> float:
    """Send messages. Return the processor seconds for a million of them."""
    topic = _topic(what)
    values = [bytes(_SIZE)] * count if what == "one value" else [b"%0*d" % (_SIZE, number) for number in range(count)]
    with Producer(address) as producer, AuditedProducer(producer) as audited:
        send: Callable[..., object] = audited.send if how == "audited" else producer.send
        for _ in range(1000):  # connected, and the interpreter is warm
            send(topic, values[0])
        producer.flush()
        begun = time.process_time()
        if what == "keyed":
            for number, value in enumerate(values):
                send(topic, value, _KEYS[number % len(_KEYS)], timestamp=1_700_000_000_000 + number)
        else:
            for value in values:
                send(topic, value)
        producer.flush()
        return (time.process_time() - begun) / count * 1e6


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
