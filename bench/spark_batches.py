"""The duration of small micro-batches, for `bench.spark`.

Strategy: a stream reads a backlog in micro-batches of equal size, each as soon as the last one has ended, to nowhere:
what takes time is what every micro-batch costs, whatever it does. Spark reports the duration of each, from planning to
the commit of its offsets. The sources take turns; the first micro-batches of a turn are left out. All of it is done in
a session as it is, where the JVM talks to its Python workers over TCP, and in one where it does over Unix sockets.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.sparks import running_spark

TOPIC: Final = "ticks"
PARTITIONS: Final = 8
PER_BATCH: Final = 8_000
BATCHES: Final = 50
ROWS: Final = PER_BATCH * BATCHES
UNIX: Final = "spark.python.unix.domain.socket.enabled"
SESSIONS: Final[Mapping[str, Mapping[str, str]]] = {"tcp": {}, "unix": {UNIX: "true"}}
#: What each name in the results reads with: the format, and options.
SOURCES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "pylogd": ("pylogd", {}),
    "pylogd grouped": ("pylogd", {"minRecordsPerTask": str(PER_BATCH // 2)}),
    "kafka": ("kafka", {}),
}
_SKIPPED: Final = 10
_ROUNDS: Final = 3

#: Processor seconds so far, by kind of process.
Cpu = Callable[[], Mapping[str, float]]


def measure(settings: Mapping[str, str], folder: Path, address: str, cpu: Cpu, sources: list[str]) -> dict[str, Any]:
    """Return the durations of micro-batches in milliseconds and the processor time, by kind of session and source."""
    found: dict[str, Any] = {"rows": PER_BATCH, "partitions": PARTITIONS}
    for kind, more in SESSIONS.items():
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        kept = {"spark.sql.streaming.numRecentProgressUpdates": str(2 * BATCHES)}
        with running_spark(folder / kind, {**settings, **kept, **more}) as spark:
            for turn in range(_ROUNDS + 1):
                for name in sources:
                    result = _turn(spark, address, name, folder / f"{kind}-{name}-{turn}", cpu)
                    if turn:
                        results[name].append(result)
        found[kind] = results
    return found


def _turn(spark: Any, address: str, name: str, checkpoint: Path, cpu: Cpu) -> dict[str, Any]:
    kind, options = SOURCES[name]
    reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", address).option("subscribe", TOPIC)
    frame = reader.options(**options).options(startingOffsets="earliest", maxOffsetsPerTrigger=str(PER_BATCH)).load()
    before = cpu()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    after = cpu()
    reports = [json.loads(report.json) for report in query.recentProgress]
    batches = [report["durationMs"]["triggerExecution"] for report in reports if report["numInputRows"]]
    if len(batches) != BATCHES:
        raise RuntimeError(f"{name}: {len(batches)} micro-batches where {BATCHES} were to be")
    return {
        "ms": batches[_SKIPPED:],
        "cpu_ms": {kind: round((after[kind] - before[kind]) / BATCHES * 1000) for kind in after},
    }


def median(rounds: list[dict[str, Any]]) -> float:
    """Return the median of all micro-batches in milliseconds."""
    return float(statistics.median(ms for each in rounds for ms in each["ms"]))
