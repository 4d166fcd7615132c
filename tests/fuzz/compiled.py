"""Compare all compiled functions with Python on hostile input: `python -m tests.fuzz.compiled`.

Strategy: requests of one shape, with batches that continue a producer's sequence or not, are damaged, cut and put into
memory that ends with them; limits and the state of the log are usual or extreme. `agree` asserts that the compiled
function returns what the functions in Python give. Ranges inside and outside of a file are sent to sockets with little
and much room. Beside this module, `repeats` has the answers to repeated Fetch requests, `repeated_batches` the appends
of repeated Produce requests, `repeated_writes` those to real files, `record_loops` the loops over records, and
`tls_loops` those over records of TLS. The command runs them all for `--seconds` with copies of the functions that were
compiled with AddressSanitizer and UBSan, so that an access out of bounds and an overflow end it too. A number that is
printed with a failure repeats it: `--first NUMBER`.

Exit status: 0 if nothing was found, 1 if something was, 2 if the sanitizers are missing.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from pylogd.broker.log.append.full_check import PREFIX_SIZE, pack_prefix
from pylogd.broker.log.append.header_check import FastAccept
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.residency import ask_by_ctypes
from pylogd.wire.fast import response_encoder
from pylogd.wire.fast.fetch import NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT, response_body
from pylogd.wire.fast.known_fetch import END
from pylogd.wire.fast.produce import END_TAGS, FIRST_FLEXIBLE
from pylogd.wire.fast.request_batch import ProduceShape, parse_request
from pylogd.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pylogd.wire.records import LENGTH_OVERHEAD
from pylogd.wire.session import ClientSession
from pylogd.wire.validation import batch_is_valid
from tests.fakes.storage import START_MS, batch, fix_crc
from tests.fuzz.damage import damaged
from tests.fuzz.record_loops import agree_on_records, agree_on_rows
from tests.fuzz.repeated_batches import RepeatedBatches
from tests.fuzz.repeated_writes import RepeatedWrites
from tests.fuzz.repeats import RepeatedFetches
from tests.fuzz.tls_loops import agree_on_receiving, agree_on_sending_records

_PACKAGE = Path(__file__).resolve().parents[2] / "pylogd"
#: The compiled modules: the source of each, by its name.
SOURCES = {
    "_fast": _PACKAGE / "wire" / "fast" / "_fast.c",
    "_residency": _PACKAGE / "broker" / "log" / "_residency.c",
    "_repeated": _PACKAGE / "broker" / "api" / "fast" / "_repeated.c",
    "_speedups": _PACKAGE / "wire" / "_speedups.c",
    "_tls_records": _PACKAGE / "link" / "_tls_records.c",
}
_SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC")
_INT64 = (1 << 63) - 1
_MOST = 256
_LARGEST = 16_382  # bytes of records whose size is a varint of two bytes
_TIMES = 100
_LEAST = 50  # inputs of each function, which takes some of them
_INT32 = 4
_INT32_MAX = (1 << 31) - 1
_OFFSET_FROM_END = 29  # of the only partition of a Fetch request
_EXTREME = (0, 1, 200, 1 << 31, _INT64 - 100, _INT64)


def agree(number: int, module: Any) -> bool:
    """Assert that the compiled `module` gives what Python gives for input `number`; return whether it took any."""
    chance = random.Random(number)
    shape, frame, chunk, at = _requests(chance)
    accept, producers = _limits(chance), Producers()
    producers.wrote(7, 0, 0, 0, 0, START_MS)
    most, max_request = chance.choice((1, 2, _MOST)), chance.choice((1 << 20, 1 << 20, 300))
    log = (
        chance.choice((100, 100, 100, 0, 1 << 40)), chance.choice((50, 50, 50, 0, (1 << 31) - 2, _INT64 - 3)),
        chance.choice((0, 5)), START_MS, chance.choice((0, 3)), chance.choice((0, 300, 4096)),
        chance.choice((0, 4096)), START_MS, 49,
    )  # fmt: skip
    template = (shape.version, shape.common, shape.encode_response(0, -1, 0))
    found = module.take_requests(
        _ending(frame), _ending(chunk), at, most, max_request, template, accept.compiled, log, producers.due
    )
    expected = _expected(frame, chunk, at, most, max_request, shape, accept, log, producers)
    assert found == expected, f"input {number}: {found} instead of {expected}"
    whole, behind = len(frame).to_bytes(_INT32, "big") + frame + chunk[at:], len(frame) + _INT32
    found_in_chunk = module.take_requests(
        None, _ending(whole), 0, most, max_request, template, accept.compiled, log, producers.due
    )
    if found is None or len(frame) > max_request:
        assert found_in_chunk is None, f"input {number}: {found_in_chunk}"
    else:
        assert found_in_chunk == (found[0], max(found[1] - at, 0) + behind, *found[2:]), f"input {number}"
    head = frame[:_INT32], frame[8 : 8 + len(shape.common)]
    assert module.matches(_ending(frame), template) == (head == (shape.version.to_bytes(_INT32, "big"), shape.common))
    return found is not None


def agree_on_fetch(number: int, module: Any) -> bool:
    """Assert that `module` reads a Fetch request, and answers it, as Python does; return whether it repeats another."""
    chance = random.Random(number)
    version, index, committed = chance.choice((13, 15, 18)), chance.choice((0, 1, _INT32_MAX)), chance.random() < 0.5
    known = _fetch_request(chance, version, index, 0)
    at = len(known) - _OFFSET_FROM_END
    offset = chance.choice((0, 1, 77, 1 << 40, _INT64, -1, -_INT64))
    data = known[:8] + chance.randbytes(_INT32) + known[12:at] + struct.pack(">q", offset) + known[at + 8 :]
    if chance.random() < 0.4:
        data = damaged(chance, data)
    if chance.random() < 0.2:
        data = chance.choice((data[: chance.randrange(len(data))], data + bytes(chance.randint(1, 9))))
    found = module.fetch_offset(known, at, bytes(data))
    repeats = (
        len(data) == len(known)
        and data[:8] + data[12:at] + data[at + 8 :] == known[:8] + known[12:at] + known[at + 8 :]
    )
    (there,) = struct.unpack_from(">q", data, at) if repeats else (-1,)
    assert found == max(there, -1), f"input {number}: {found} instead of {there}"
    numbers = [chance.choice((0, 1, 1 << 33, _INT64, -1)) for _ in range(3)]
    size = chance.choice((0, 1, 126, 127, 128, 16_382, 16_383, 200_000, _INT32_MAX - 100))
    if len(data) >= 12:
        head = module.fetch_head(response_body(bytes(16), index, committed), bytes(data), *numbers, size)
        assert head == _fetch_head(data[8:12], index, committed, numbers, size), f"input {number}: {head!r}"
    return repeats


def _counted_alike(module: Any, fd: int, position: int, length: int) -> bool:
    """Return whether `module` counts a file's pages in memory as ctypes does.

    The system may take a page away between the two calls, so they are repeated: they differ by accident now and then,
    but not a hundred times in a row.
    """
    return any(
        module.pages_in_memory(fd, position, length) == ask_by_ctypes(fd, position, length) for _ in range(_TIMES)
    )


def agree_on_sending(number: int, module: Any) -> bool:
    """Assert that `module` sends what a file has, and counts its pages as ctypes does; return whether it sent any."""
    chance = random.Random(number)
    content = chance.randbytes(chance.choice((0, 1, 4095, 4096, 4097, 70_000)))
    around = (-1, 0, 1, len(content) // 2, len(content) - 1, len(content), len(content) + 1, 1 << 40, _INT64)
    head, position, length = chance.randbytes(chance.choice((0, 1, 90))), chance.choice(around), chance.choice(around)
    ours, peer = socket.socketpair()
    with TemporaryFile(buffering=0) as file, ours, peer:
        file.write(content)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, chance.choice((1, 1 << 20)))
        out, fd = chance.choice((ours.fileno(), ours.fileno(), -1)), chance.choice((file.fileno(), file.fileno(), -1))
        if position >= 0 and 0 < length <= _INT64 - position:
            assert _counted_alike(module, fd, position, length), f"input {number}"
        try:
            sent = module.send_resident(out, head, fd, position, length)
        except ValueError:
            assert position < 0 or length <= 0 or position + length > _INT64, f"input {number}"
            return False
        ours.close()
        got = b"".join(iter(partial(peer.recv, 1 << 20), b""))
    whole = head + content[position : position + length]
    assert got == whole[: max(sent, 0)], f"input {number}: {sent} bytes sent, {len(got)} received"
    whole_length = position + length <= len(content)
    assert sent < len(head) + length or whole_length, f"input {number}: sent from behind the file's end"
    return bool(sent > 0)


def _fetch_request(chance: random.Random, version: int, index: int, offset: int) -> bytes:
    """Return a Fetch request, its length in front."""
    topic = FetchTopic("", bytes(16), [FetchPartition(index, 0, offset, partition_max_bytes=1 << 20)])
    session = ClientSession(1 << 20, chance.choice((None, "me")))
    parts: list[Any] = session.encode_request(FetchRequest(topics=[topic]), version)
    return b"".join(parts)


class _Records:
    """Records of which only the size matters. It is the codec's length of them."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def _fetch_head(correlation_id: bytes, index: int, committed: bool, numbers: list[int], size: int) -> bytes:
    """Return what the codec puts in front of the records of a response."""
    empty: list[Any] = []
    records: Any = _Records(size)
    high_watermark, stable, log_start = numbers
    data = PartitionData(
        index, 0, high_watermark, stable, log_start, NO_DIVERGENCE, NO_LEADER, NO_SNAPSHOT,
        empty if committed else None, -1, records,
    )  # fmt: skip
    response = FetchResponse(0, 0, 0, [FetchableTopicResponse("", bytes(16), [data])], [])
    parts: list[Any] = response_encoder(FetchRequest.API_KEY, 16, lambda _: [])(response)
    body = parts[0]
    if size:
        assert parts[2] == END
    else:  # one part, with what follows the records
        assert body.endswith(END)
        body = body[: -len(END)]
    head = correlation_id + b"\0" + body
    return struct.pack(">i", len(head) + size + len(END)) + bytes(head)


def _ending(data: bytes) -> memoryview:
    """Return the bytes in memory of their own, so that a sanitizer sees what is read behind them."""
    return memoryview(bytearray(data))


def _requests(chance: random.Random) -> tuple[ProduceShape, bytes, bytes, int]:
    """Return a shape, a request, and others in a chunk from a position on; some are damaged."""
    session, version = ClientSession(1 << 20, chance.choice((None, "me"))), chance.choice((3, 5, 7, 8, 9, 11, 13))
    sequence, producer = 1, chance.choice((-1, -1, 7, 8))
    known = parse_request(memoryview(_request(session, version, batch())))
    assert known is not None
    requests: list[bytes] = []
    for _ in range(chance.randint(1, 9)):
        fields: dict[str, Any] = {}
        if producer >= 0:
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        count = chance.choice((1, 1, 3))
        sequence += count + chance.choice((0, 0, 0, 0, 0, 1, -count))
        size = chance.choice((0, 10, 20, 20, 50, 60, 200, 3000, 20_000))
        records = batch(*[b"v" * size] * count, compression=chance.choice((0, 0, 0, 0, 4)), **fields)
        if chance.random() < 0.1:
            records = damaged(chance, records)
            records = fix_crc(records) if chance.random() < 0.7 else records
        if chance.random() < 0.05:
            records = records[: chance.randint(1, 100)]
        request = _request(session, version, records)
        if chance.random() < 0.1:
            request = chance.choice(
                (request + bytes(chance.randint(1, 3)), request[: -chance.randint(1, len(request))])
            )
        requests.append(request)
    first, skipped = requests[0], bytes(chance.randint(0, 3))
    chunk = skipped + b"".join(len(request).to_bytes(_INT32, "big") + request for request in requests[1:])
    if chance.random() < 0.3:
        chunk = damaged(chance, chunk)
    if chance.random() < 0.1:
        first = damaged(chance, first)
    if chance.random() < 0.2:
        chunk = chunk[: max(len(skipped), len(chunk) - chance.randint(0, 300))]
    return known.shape, first, chunk, min(len(skipped), len(chunk))


def _request(session: ClientSession, version: int, records: bytes) -> bytes:
    """Return a Produce request without its length."""
    topic = TopicProduceData("" if version > 12 else "t", bytes(16), [PartitionProduceData(0, records)])
    parts: list[Any] = session.encode_request(ProduceRequest(None, 1, 1000, [topic]), version)
    return b"".join(parts)[_INT32:]


def _limits(chance: random.Random) -> FastAccept:
    """Return limits, of which one may be extreme."""
    accept = FastAccept()
    accept.is_valid = batch_is_valid
    accept.plain = frozenset(range(chance.choice((1, 5))))
    usual = {
        "max_bytes": 1 << 20, "segment_bytes": 1 << 30, "last_offset": (1 << 31) - 1,
        "roll_timestamp": START_MS + 3_600_000, "before_max_ms": _INT64, "after_max_ms": 3_600_000,
    }  # fmt: skip
    if chance.random() < 0.4:
        usual[chance.choice(list(usual))] = chance.choice(_EXTREME)
    usual["last_offset"] = min(usual["last_offset"], _INT64 - 1)  # the log end offset is one more
    for name, value in usual.items():
        setattr(accept, name, value)
    values = usual.values()
    accept.compiled = (*values, max(accept.plain))  # type: ignore[assignment]  # there are six
    return accept


def _expected(
    frame: bytes, chunk: bytes, at: int, most: int, max_request: int, shape: ProduceShape, accept: FastAccept,
    log: tuple[int, ...], producers: Producers,
) -> object:  # fmt: skip
    """Return what the compiled function should, made by the functions in Python."""
    requests = parse_request(memoryview(frame))
    if requests is None or (requests.shape.version, requests.shape.common) != (shape.version, shape.common):
        return None
    size_bytes = len(frame) - len(requests.records[0]) - 8 - len(shape.common)
    if len(requests.records[0]) > _LARGEST or (shape.version >= FIRST_FLEXIBLE and size_bytes > 2 + len(END_TAGS)):
        return None
    if most > 1:
        requests.collect(memoryview(chunk), at, max_request, most)
    position, offset, epoch, now_ms, log_start, interval, since, stamp, stamp_offset = log
    accepted = accept.check_all(requests.records, position, offset, now_ms, producers)
    if not accepted:
        return None
    data, entries, wrote = b"", [], []
    for records, base, (delta, newest, producer, producer_epoch, sequence) in accepted:
        data += pack_prefix(base, len(records) - LENGTH_OVERHEAD, epoch) + records[PREFIX_SIZE:]
        offset = base + delta + 1
        if newest > stamp:
            stamp, stamp_offset = newest, base + delta
        if since > interval:
            entries.append((base + delta, position, stamp, stamp_offset))
            since = 0
        since, position = since + len(records), position + len(records)
        if producer >= 0:
            wrote.append((producer, producer_epoch, sequence, delta, base, newest))
    replies = requests.encode_responses([base for _, base, _ in accepted], -1, log_start)
    count = len(accepted)
    return (
        count, requests.ends[count - 1], data, replies, offset, since, stamp, stamp_offset, entries, wrote[-5:]
    )  # fmt: skip


# The command ----------------------------------------------------------------------------------------------------------


def sanitizers() -> list[str]:
    """Return the libraries that a process needs in which sanitized code runs; an empty list if there are none."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return []
    found = []
    for name in ("libasan.so", "libubsan.so"):
        asked = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        found.append(asked.stdout.strip())
    return found if all(map(os.path.isabs, found)) else []


def full_name(source: Path) -> str:
    """Return the name with which the compiled module of a source is imported."""
    return ".".join(source.relative_to(_PACKAGE.parent).with_suffix("").parts)


def run_sanitized(seconds: float, first: int) -> int:
    """Compile sanitized copies, and have a child `run` with them; return its exit status."""
    libraries = sanitizers()
    if not libraries:
        print("fuzz: needs gcc with its sanitizers (Debian: apt-get install gcc)", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        include = f"-I{sysconfig.get_path('include')}"
        for source in SOURCES.values():
            copy = Path(folder, f"{full_name(source)}.so")
            subprocess.run(["gcc", *_SANITIZED, include, "-o", str(copy), str(source)], check=True)
        environment = os.environ | {
            "LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc",
            "UBSAN_OPTIONS": "print_stacktrace=1", "PYLOGD_PURE_PYTHON": "",
        }  # fmt: skip
        child = [sys.executable, "-m", "tests.fuzz.sanitized", folder, str(seconds), str(first)]
        return 1 if subprocess.run(child, env=environment, cwd=_PACKAGE.parent, check=False).returncode else 0


def main(arguments: Sequence[str]) -> int:
    """Run as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.compiled", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="how long (20)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input (0)")
    options = parser.parse_args(arguments)
    return run_sanitized(options.seconds, options.first)


def run(modules: dict[str, Any], seconds: float, first: int) -> None:
    """Compare the modules with Python for so long, and with at least `_LEAST` inputs, from input `first` on.

    Raises AssertionError, also if a function took none of its inputs.
    """
    with RepeatedFetches() as repeats, RepeatedBatches() as batches, RepeatedWrites() as writes:
        functions: tuple[tuple[str, Callable[[int, Any], bool]], ...] = (
            ("_fast", agree), ("_fast", agree_on_fetch), ("_residency", agree_on_sending), ("_repeated", repeats.agree),
            ("_repeated", batches.agree), ("_repeated", writes.agree), ("_speedups", agree_on_records),
            ("_speedups", agree_on_rows), ("_tls_records", agree_on_receiving),
            ("_tls_records", agree_on_sending_records),
        )  # fmt: skip
        spent, taken = [0.0] * len(functions), [0] * len(functions)
        numbers = [first] * len(functions)
        while sum(spent) < seconds or min(numbers) < first + _LEAST:
            used: list[Any] = spent if sum(spent) < seconds else numbers
            at = used.index(min(used))  # all have the same time, or number of inputs
            name, function = functions[at]
            begin = time.monotonic()
            taken[at] += function(numbers[at], modules[name])
            numbers[at] += 1
            spent[at] += time.monotonic() - begin
        print("fuzz: writes:", "; ".join(f"{count} {outcome}" for outcome, count in writes.outcomes.most_common()))
    for (name, function), number, count in zip(functions, numbers, taken, strict=True):
        inputs = number - first
        assert count, f"{function.__qualname__}: none of {inputs} inputs was taken"
        print(f"fuzz: {name}: {function.__qualname__}: {inputs} inputs, {count} taken; nothing found")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
