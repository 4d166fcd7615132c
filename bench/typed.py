"""What it costs to decode messages into typed columns, by language. Writes TYPED.md with `--write`.

    python -m bench.typed [--rounds 5] [--write]

The same 10,000 events of nine fields (two of them nested) are written in Avro, JSON and Protobuf, as Confluent's
serializers do, and decoded as one batch by `pylogd.typed`, as a task of `pylogd load --schema-registry` does. Beside it
the bare library reads the same bytes into Python objects, one message at a time: what a consumer that makes objects
pays before it has a column. Then a batch in which every hundredth message does not fit: what finding these costs.
Processor time of one thread; the best of the rounds.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import fastavro
import orjson
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from bench.machine import machine
from pylogd.typed.decoding import Decoder, Readers
from pylogd.typed.registry import AVRO, JSON, PROTOBUF, Registered
from tests.pages import write_page

REPORT: Final = Path(__file__).with_name("TYPED.md")
MESSAGES: Final = 10_000
_HEAD: Final = b"\x00\x00\x00\x00\x01"
_POINT: Final = {"lat": 40.64, "lon": -73.78}
EVENT: Final[dict[str, Any]] = {
    "id": 123456, "tail": "N14228", "carrier": "UA", "delay": 2, "distance": 1400.5, "departed": 1_700_000_000_000_000,
    "cancelled": False, "origin": _POINT, "stops": [_POINT, _POINT],
}  # fmt: skip
_AVRO_POINT: Final = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "lat", "type": "double"}, {"name": "lon", "type": "double"}],
}
AVRO_SCHEMA: Final = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "tail", "type": "string"}, {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"]}, {"name": "distance", "type": "double"},
        {"name": "departed", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "cancelled", "type": "boolean"}, {"name": "origin", "type": _AVRO_POINT},
        {"name": "stops", "type": {"type": "array", "items": "Point"}},
    ],
}  # fmt: skip
_JSON_POINT: Final = {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}}
JSON_SCHEMA: Final = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"}, "tail": {"type": "string"}, "carrier": {"type": "string"},
        "delay": {"type": ["null", "integer"]}, "distance": {"type": "number"}, "departed": {"type": "integer"},
        "cancelled": {"type": "boolean"}, "origin": _JSON_POINT, "stops": {"type": "array", "items": _JSON_POINT},
    },
    "additionalProperties": False,
}  # fmt: skip


class Lookup:
    """A registry of one schema, whose id is 1."""

    def __init__(self, schema: Registered) -> None:
        self._schema = schema

    def schema(self, schema_id: Any) -> Registered:
        """Return the schema."""
        return self._schema


def proto_file() -> FileDescriptorProto:
    """Return the Protobuf schema of the events."""
    kinds = FieldDescriptorProto
    file = FileDescriptorProto(name="event.proto", syntax="proto3")
    event, point = file.message_type.add(name="Event"), file.message_type.add(name="Point")
    simple = [
        ("id", kinds.TYPE_INT64), ("tail", kinds.TYPE_STRING), ("carrier", kinds.TYPE_STRING),
        ("delay", kinds.TYPE_INT32), ("distance", kinds.TYPE_DOUBLE), ("departed", kinds.TYPE_INT64),
        ("cancelled", kinds.TYPE_BOOL),
    ]  # fmt: skip
    for number, (name, kind) in enumerate(simple, start=1):
        event.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    for number, (name, label) in enumerate(
        [("origin", kinds.LABEL_OPTIONAL), ("stops", kinds.LABEL_REPEATED)], start=8
    ):
        event.field.add(name=name, number=number, type=kinds.TYPE_MESSAGE, label=label, type_name=".Point")
    for number, name in enumerate(_POINT, start=1):
        point.field.add(name=name, number=number, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL)
    return file


def avro() -> tuple[Registered, bytes, Callable[[bytes], Any]]:
    """Return the schema, an event, and how the library reads it."""
    parsed = fastavro.parse_schema(AVRO_SCHEMA)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, parsed, EVENT)
    return (
        Registered(AVRO, json.dumps(AVRO_SCHEMA)), body.getvalue(),
        lambda event: fastavro.schemaless_reader(io.BytesIO(event), parsed, None),
    )  # fmt: skip


def json_text() -> tuple[Registered, bytes, Callable[[bytes], Any]]:
    """Return the schema, an event, and how the library reads it."""
    return Registered(JSON, json.dumps(JSON_SCHEMA)), orjson.dumps(EVENT), orjson.loads


def protobuf() -> tuple[Registered, bytes, Callable[[bytes], Any]]:
    """Return the schema, an event, and how the library reads it. The first message type is a zero byte."""
    file = proto_file()
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))
    body = kind(**{name: value for name, value in EVENT.items() if value is not False}).SerializeToString()
    schema = Registered(PROTOBUF, base64.b64encode(file.SerializeToString()).decode())
    return schema, b"\x00" + body, lambda event: kind.FromString(event[1:])


def best(rounds: int, run: Callable[[], Any]) -> float:
    """Return the microseconds of processor time for each message, in the best round."""
    times = []
    for _ in range(rounds):
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return min(times) / MESSAGES * 1e6


def _read_all(read: Callable[[bytes], Any], bodies: list[bytes]) -> None:
    for body in bodies:
        read(body)


def measure(rounds: int) -> list[str]:
    """Return the rows of the table."""
    lines = []
    for name, (schema, body, read) in (("Avro", avro()), ("JSON Schema", json_text()), ("Protobuf", protobuf())):
        readers = Readers(Lookup(schema))
        decoder = Decoder(pa.schema(list(readers.columns(1))), readers)
        values = pa.array([_HEAD + body] * MESSAGES)
        some_bad = pa.array(
            [_HEAD + body[: len(body) // 2] if at % 100 == 0 else _HEAD + body for at in range(MESSAGES)]
        )
        assert decoder.decode(values).reasons.null_count == MESSAGES
        assert decoder.decode(some_bad).reasons.null_count == MESSAGES - MESSAGES // 100
        bare = best(rounds, partial(_read_all, read, [body] * MESSAGES))
        good = best(rounds, partial(decoder.decode, values))
        bad = best(rounds, partial(decoder.decode, some_bad))
        lines.append(f"| {name} | {len(body)} | {bare:.2f} | {good:.2f} | {bad:.2f} |")
    return lines


def main() -> None:
    """Measure, print, and with `--write` replace the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lines = [
        "# What typed columns cost",
        "",
        f"By `python -m bench.typed --rounds {given.rounds}`; its docstring explains the method. Microseconds of",
        "processor time for each message, in batches of 10,000 events of nine fields.",
        "",
        "| language | bytes of an event | the library alone, objects | columns | columns, 1 in 100 does not fit |",
        "| --- | ---: | ---: | ---: | ---: |",
        *measure(given.rounds),
        "",
        "Measured on {cores} cores ({processor}), {memory}, {system}, Python {python}, at commit {commit}.".format(
            **machine("")
        ),
        f"The load average was {os.getloadavg()[0]:.0f}.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    if given.write:
        write_page(REPORT, lines)


if __name__ == "__main__":
    main()
