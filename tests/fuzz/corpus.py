"""The inputs of the fuzz targets: a stored corpus, and seeds made from the golden vectors.

The corpus of a target is `corpus/<target>.txt`, one input a line as hexadecimal digits, sorted; lines that begin with
`#` are comments. A run keeps what the fuzzer found to reach code that the others do not: see `tests/fuzz/__main__.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pylogd.wire import records
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages import APIS
from tests.fuzz.targets import RESPONSE_BIT

FOLDER = Path(__file__).with_name("corpus")
_VECTORS = Path(__file__).resolve().parents[2] / "protocol" / "vectors"
_LONGEST_SEED = 2000
_STAMP = 1_700_000_000_000


def stored(target: str) -> list[bytes]:
    """Return the stored inputs of a target."""
    lines = (FOLDER / f"{target}.txt").read_text("ascii").splitlines()
    return [bytes.fromhex(line) for line in lines if not line.startswith("#")]


def store(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the stored inputs of a target."""
    head = f"# Inputs of the fuzz target {target!r}, found by `python -m tests.fuzz --keep`; replayed by make test.\n"
    body = "".join(f"{line}\n" for line in sorted(data.hex() for data in set(inputs) if data))
    (FOLDER / f"{target}.txt").write_text(head + body, "ascii")


def seeds(target: str) -> list[bytes]:
    """Return well-formed inputs of a target, from which the fuzzer starts."""
    match target:
        case "frames":
            return _frames()
        case "batches":
            return _batches()
        case _:
            return [data for _, data in _messages() if len(data) <= _LONGEST_SEED]


def _messages() -> list[tuple[bytes, bytes]]:
    """Return (request header, input of the target `messages`) for each golden vector; responses have no header."""
    found = []
    for path in sorted(_VECTORS.glob("*.json")):
        vectors = json.loads(path.read_text("utf-8"))
        key = vectors["key"]
        for role, bit in (("request", 0), ("response", RESPONSE_BIT)):
            for vector in vectors[role]:
                if vector["version"] in range(APIS[key].min_version, APIS[key].max_version + 1):
                    start = bytes((key, vector["version"] | bit))
                    header = b"" if bit else bytes.fromhex(vector["header"])
                    found.append((header, start + bytes.fromhex(vector["body"])))
    return found


def _frames() -> list[bytes]:
    """Return each golden request as a stream of two equal frames, received in pieces of a few sizes."""
    found = []
    for number, (header, data) in enumerate(_messages()):
        frame = header + data[2:]
        if header and len(frame) <= _LONGEST_SEED // 2:
            found.append(bytes((number % 256,)) + 2 * (len(frame).to_bytes(4, "big") + frame))
    return found


def _batches() -> list[bytes]:
    some = [
        records.NewRecord(b"key", b"value", _STAMP, [("header", b"value"), ("null", None)]),
        records.NewRecord(None, b"v" * 200, _STAMP + 1),
        records.NewRecord(b"", None, _STAMP - 1, [("", b"")]),
    ]
    return [
        records.encode_batch(some[:count], compression=codec, attributes=attributes, base_offset=7)
        for codec in CompressionType
        for count in (1, 3)
        for attributes in (0, records.LOG_APPEND_TIME, records.TRANSACTIONAL | records.CONTROL)
    ]
