"""The process that checks schemas: its tasks and its limits."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from pylogd.services.registry.model import AVRO, JSON, PROTOBUF, Comparison, Compatibility, Definition
from pylogd.services.registry.worker import LENGTH, compare_task, read_task, render_task, work

SECONDS = 120


def run(*tasks: dict[str, object], megabytes: int = 512, seconds: int = 60) -> tuple[int, list[dict[str, object]]]:
    """Run a process with these tasks. Return its exit code and the outcomes."""
    lines = [json.dumps(task).encode() for task in tasks]
    done = subprocess.run(
        [sys.executable, "-m", "pylogd.services.registry.worker", str(megabytes), str(seconds)],
        input=b"".join(LENGTH.pack(len(line)) + line for line in lines), capture_output=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    source, outcomes = io.BytesIO(done.stdout), []
    while head := source.read(LENGTH.size):
        outcomes.append(json.loads(source.read(LENGTH.unpack(head)[0])))
    return done.returncode, outcomes


def compare(level: Compatibility, new: str, earlier: str) -> dict[str, object]:
    return compare_task(Comparison(AVRO, level, (Definition("", new),), ((3, (Definition("", earlier),)),)))


def read(text: str, kind: str = AVRO) -> dict[str, object]:
    return read_task(kind, (Definition("", text),))


def test_tasks_are_done_in_order() -> None:
    code, outcomes = run(
        read('"string"'), read('"nothing"'), compare(Compatibility.BACKWARD, '"long"', '"int"'),
        compare(Compatibility.FORWARD, '"long"', '"int"'),
    )  # fmt: skip
    assert code == 0
    assert outcomes[0] == {"text": '"string"'} and "Invalid schema of type AVRO" in str(outcomes[1]["invalid"])
    assert outcomes[2] == {"reasons": []} and "version 3 can't read its data" in str(outcomes[3]["reasons"])


def test_a_task_that_takes_too_long_ends_the_process() -> None:
    wide = [json.dumps([{"type": "fixed", "name": f"n{at}", "size": size} for at in range(1000)]) for size in (1, 2)]
    code, outcomes = run(read('"int"'), compare(Compatibility.BACKWARD, *wide), seconds=1)
    assert code < 0 and len(outcomes) == 1


def test_a_task_that_takes_too_much_memory_is_refused() -> None:
    large = json.dumps({"type": "enum", "name": "e", "symbols": [f"symbol{at}" for at in range(1_000_000)]})
    code, outcomes = run(read(large), read('"int"'), megabytes=160)
    assert code == 0
    assert "too much memory" in str(outcomes[0].get("invalid"))
    assert outcomes[1] == {"text": '"int"'}


def test_a_schema_that_is_nested_too_deeply_is_invalid() -> None:
    deep = '{"type":"array","items":' * 2000 + '"int"' + "}" * 2000
    assert "invalid" in work(read(deep))


NESTED = {
    JSON: '{"items":' * 2000 + "{}" + "}" * 2000,
    PROTOBUF: 'syntax = "proto3";' + "message A {" * 2000 + "}" * 2000,
}


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
def test_the_process_survives_what_is_no_schema(kind: str) -> None:
    """Among them a schema that is nested so deeply that a compiler might overflow its stack."""
    code, outcomes = run(read("{", kind), read(NESTED[kind], kind), read("[]", kind), read("\0", kind))
    assert code == 0 and len(outcomes) == 4
    assert all("invalid" in outcome for outcome in outcomes), outcomes


def test_a_protobuf_schema_within_the_memory_of_a_process() -> None:
    text = 'syntax = "proto3";\n\nmessage A {\n  int32 n = 1;\n}\n'
    definitions = (Definition("", text),)
    code, outcomes = run(read_task(PROTOBUF, definitions), render_task(PROTOBUF, definitions, "serialized"))
    assert code == 0
    assert outcomes[0] == {"text": text}
    assert run(read(str(outcomes[1]["text"]), PROTOBUF)) == (0, [{"text": text}])
