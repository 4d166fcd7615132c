"""A client's program that the scenarios drive: a line of JSON for each operation, a line of JSON for its answer.

An operation is `{"do": NAME, ...}`, its answer `{"answer": VALUE}`, or `{"error": TEXT}` with the classes and codes by
which the client tells errors apart, without the words. `{"lacks": true}` says that the client does not have it.
The programs are `librdkafka.py`, `kafka_python.py`, `java/Transacting.java` and `go/transacting.go`. Operations:

* `producer` name, id, timeout: make a producer with a transactional id, and a transaction timeout in ms.
* `init`, `begin`, `commit`, `abort`, `close` name.
* `send` name, topic, partition, values: send, wait for all, and answer their offsets.
* `metadata` consumer, as: keep a consumer's group metadata as it is now, under a name.
* `offsets` name, offsets, consumer or metadata: send offsets, `{topic: {partition: offset}}`, to the transaction.
* `read` topic, partitions, isolation: answer the values from the start to the end that the isolation level has.
* `ends` topic, partitions, isolation: answer that end.
* `consumer` name, group, protocol, topics or pattern, assignor, instance, most: make a consumer. Without topics and
  pattern it is not a member of the group. most: how many records a poll returns.
* `poll` name, ms: poll once, and answer the values. `records` name, ms: the same with topic, partition and offset.
* `rewind` name: go on behind what is committed, or from the start, in all its partitions.
* `assignment` name: answer its partitions, as `topic-partition`, sorted.
* `commit_offsets` name, offsets: commit. `committed` name, topic, partitions: answer the committed offsets.
* `describe_transaction` id; `describe_producers` topic, partition; `describe_group` group: answer what the client's
  admin operations say, without what differs from run to run.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.checks import HERE

#: How long one operation may take; the first one includes the start of a JVM, which takes minutes on a busy machine.
SECONDS: Final = 240.0
Operations = Mapping[str, Callable[..., Any]]


class Lacks(Exception):
    """Raised if a client does not have an operation."""


class Driver:
    """A client's program. `broken`: it hangs or has ended."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        """errors: the file that gets what the program writes to standard error."""
        self._errors = errors
        with errors.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=os.environ | {"PYTHONPATH": str(HERE.parent)},
            )  # fmt: skip
        self._buffer = b""
        self.broken = False

    def __call__(self, do: str, **fields: Any) -> Any:
        """Do one operation, and return its answer, or a text that begins with `error`. Raises Lacks."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._process.stdin.flush()
        found = json.loads(self._line(do))
        if "lacks" in found:
            raise Lacks
        return f"error {found['error']}" if "error" in found else found["answer"]

    def _line(self, do: str) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + SECONDS
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                self.broken = True
                said = self._errors.read_text(errors="replace")[-2000:]
                raise RuntimeError(
                    f"{do}: {'the program ended' if ready else f'not done after {SECONDS:.0f} s'}: {said}"
                )
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def serve(operations: Operations, name_of: Callable[[Exception], str]) -> None:
    """Carry out operations until standard input ends. name_of: an exception's classes and codes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a client prints is not an answer
    for line in sys.stdin:
        fields = json.loads(line)
        found: dict[str, Any]
        try:
            found = {"answer": _of(operations, fields.pop("do"))(**fields)}
        except Lacks:
            found = {"lacks": True}
        except Exception as error:
            print(f"{line.strip()}: {error!r}", file=sys.stderr, flush=True)
            found = {"error": name_of(error)}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def _of(operations: Operations, name: str) -> Callable[..., Any]:
    if name not in operations:
        raise Lacks
    return operations[name]
