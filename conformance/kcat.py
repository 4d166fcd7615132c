"""kcat, as the distribution packages it."""

from __future__ import annotations

import json
import time
import uuid

from conformance import checks
from conformance.checks import Check, expect

CODECS = ("gzip", "snappy", "lz4", "zstd")


def version() -> str:
    """Return kcat's version, as `kcat -V` prints it."""
    said = checks.run([checks.tool("kcat", "kcat"), "-V"], seconds=10).stdout
    return next((line.split(" (")[0] for line in said.splitlines() if line.startswith("Version")), "unknown")


class _Kcat:
    """kcat on partition 0 of a topic of its own. Each run returns what it found and the last line of its errors."""

    def __init__(self, address: str) -> None:
        self.command = [checks.tool("kcat", "kcat"), "-b", address]
        self.topic = f"kcat-{uuid.uuid4().hex[:8]}"

    def produce(self, lines: str, *options: str) -> tuple[bool, str]:
        """Send lines; return whether kcat succeeded."""
        done = checks.run([*self.command, "-P", "-t", self.topic, "-p", "0", *options], seconds=30, stdin=lines)
        return done.returncode == 0, checks.last_line(done.stderr)

    def consume(self, *options: str) -> tuple[str, str]:
        """Return what kcat prints of the partition up to its end."""
        done = checks.run([*self.command, "-C", "-t", self.topic, "-p", "0", "-e", "-q", *options], seconds=30)
        return done.stdout, checks.last_line(done.stderr)


def suite(address: str) -> list[Check]:
    """Produce, consume, list, query, headers, time stamps and codecs."""
    kcat = _Kcat(address)
    return [*_offsets(kcat), *_metadata_and_times(kcat), *_codecs(kcat), _by_group(kcat.command, kcat.topic)]


def _offsets(kcat: _Kcat) -> list[Check]:
    lines = "".join(f"key-{number % 3}:line {number}\n" for number in range(100))
    results = [expect("produce keyed lines", *kcat.produce(lines, "-K:"))]
    said, why = kcat.consume("-K:")
    results.append(expect("consume them all", said == lines, why))
    said, why = kcat.consume("-o", "90", "-f", "%o %k %s\n")
    results.append(expect("consume from an offset", said.startswith("90 key-0 line 90\n"), why))
    said, why = kcat.consume("-o", "-5", "-f", "%o\n")
    results.append(expect("consume the last five", said.split() == ["95", "96", "97", "98", "99"], why))
    said, why = kcat.consume("-c", "3")
    results.append(expect("consume three and stop", said.count("\n") == 3, why))
    return results


def _metadata_and_times(kcat: _Kcat) -> list[Check]:
    done = checks.run([*kcat.command, "-L", "-J"], seconds=30)
    listed = json.loads(done.stdout) if done.returncode == 0 else {"topics": []}
    names = [found["topic"] for found in listed["topics"]]
    results = [expect("list metadata as JSON", kcat.topic in names, checks.last_line(done.stderr))]

    middle = int(time.time() * 1000)
    done = checks.run([*kcat.command, "-Q", "-t", f"{kcat.topic}:0:{middle + 60_000}"], seconds=30)
    results.append(expect("query an offset by time", "offset" in done.stdout, checks.last_line(done.stderr)))
    results.append(expect("produce with headers", *kcat.produce("with headers\n", "-H", "a=1", "-H", "b=two")))
    said, why = kcat.consume("-o", "100", "-f", "%h %s\n")
    results.append(expect("consume with headers", said == "a=1,b=two with headers\n", why))
    said, why = kcat.consume("-o", f"s@{middle - 3_600_000}", "-c", "1", "-f", "%o\n")
    results.append(expect("consume from a time stamp", said == "0\n", why))
    return results


def _codecs(kcat: _Kcat) -> list[Check]:
    results = []
    for codec in CODECS:
        before = 101 + CODECS.index(codec) * 200
        block = "".join(f"{codec} {number} {'x' * 50}\n" for number in range(200))
        sent, why = kcat.produce(block, "-z", codec)
        if sent:
            said, why = kcat.consume("-o", str(before))
            sent = said == block
        results.append(expect(f"produce and consume {codec}", sent, why))
    results.append(expect("idempotent producer", *kcat.produce("once\n", "-X", "enable.idempotence=true")))
    return results


def _by_group(kcat: list[str], topic: str) -> Check:
    group = f"group-{uuid.uuid4().hex[:8]}"
    command = [*kcat, "-G", group, "-c", "5", "-e", "-q", "-X", "auto.offset.reset=earliest", topic]
    done = checks.run(command, seconds=30)
    return expect("consume as a group", done.stdout.count("\n") == 5, checks.last_line(done.stderr))
