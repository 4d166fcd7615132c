"""kcat, as the distribution packages it."""

from __future__ import annotations

import json
import time
import uuid

from conformance import checks
from conformance.checks import Check, expect

CODECS = ("gzip", "snappy", "lz4", "zstd")


def version() -> str:
    """What kcat says of itself."""
    said = checks.run([checks.tool("kcat", "kcat"), "-V"], seconds=10).stdout
    return next((line.split(" (")[0] for line in said.splitlines() if line.startswith("Version")), "unknown")


def suite(address: str) -> list[Check]:
    """Produce, consume, list, query, headers, time stamps and codecs."""
    kcat = [checks.tool("kcat", "kcat"), "-b", address]
    topic = f"kcat-{uuid.uuid4().hex[:8]}"
    results = []

    def produce(lines: str, *options: str) -> tuple[bool, str]:
        done = checks.run([*kcat, "-P", "-t", topic, "-p", "0", *options], seconds=30, stdin=lines)
        return done.returncode == 0, checks.last_line(done.stderr)

    def consume(*options: str) -> tuple[str, str]:
        done = checks.run([*kcat, "-C", "-t", topic, "-p", "0", "-e", "-q", *options], seconds=30)
        return done.stdout, checks.last_line(done.stderr)

    lines = "".join(f"key-{number % 3}:line {number}\n" for number in range(100))
    results.append(expect("produce keyed lines", *produce(lines, "-K:")))
    said, why = consume("-K:")
    results.append(expect("consume them all", said == lines, why))
    said, why = consume("-o", "90", "-f", "%o %k %s\n")
    results.append(expect("consume from an offset", said.startswith("90 key-0 line 90\n"), why))
    said, why = consume("-o", "-5", "-f", "%o\n")
    results.append(expect("consume the last five", said.split() == ["95", "96", "97", "98", "99"], why))
    said, why = consume("-c", "3")
    results.append(expect("consume three and stop", said.count("\n") == 3, why))

    done = checks.run([*kcat, "-L", "-J"], seconds=30)
    listed = json.loads(done.stdout) if done.returncode == 0 else {"topics": []}
    names = [found["topic"] for found in listed["topics"]]
    results.append(expect("list metadata as JSON", topic in names, checks.last_line(done.stderr)))

    middle = int(time.time() * 1000)
    done = checks.run([*kcat, "-Q", "-t", f"{topic}:0:{middle + 60_000}"], seconds=30)
    results.append(expect("query an offset by time", "offset" in done.stdout, checks.last_line(done.stderr)))
    results.append(expect("produce with headers", *produce("with headers\n", "-H", "a=1", "-H", "b=two")))
    said, why = consume("-o", "100", "-f", "%h %s\n")
    results.append(expect("consume with headers", said == "a=1,b=two with headers\n", why))
    said, why = consume("-o", f"s@{middle - 3_600_000}", "-c", "1", "-f", "%o\n")
    results.append(expect("consume from a time stamp", said == "0\n", why))
    for codec in CODECS:
        before = 101 + CODECS.index(codec) * 200
        block = "".join(f"{codec} {number} {'x' * 50}\n" for number in range(200))
        sent, why = produce(block, "-z", codec)
        if sent:
            said, why = consume("-o", str(before))
            sent = said == block
        results.append(expect(f"produce and consume {codec}", sent, why))
    results.append(expect("idempotent producer", *produce("once\n", "-X", "enable.idempotence=true")))
    results.append(_by_group(kcat, topic))
    return results


def _by_group(kcat: list[str], topic: str) -> Check:
    group = f"group-{uuid.uuid4().hex[:8]}"
    command = [*kcat, "-G", group, "-c", "5", "-e", "-q", "-X", "auto.offset.reset=earliest", topic]
    done = checks.run(command, seconds=30)
    return expect("consume as a group", done.stdout.count("\n") == 5, checks.last_line(done.stderr))
