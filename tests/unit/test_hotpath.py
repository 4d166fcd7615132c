"""Count the instructions and calls of a request, so that a slower hot path is found without measuring time."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pylogd.broker.api.statistics import PRODUCE, STATISTICS
from pylogd.wire import records
from pylogd.wire.fast.compiled import fast
from pylogd.wire.fast.produce import FIRST, FIRST_TOPIC_ID
from tests.hotpath import COMPILED, HotPath, cases, cost

BASELINE = json.loads((Path(__file__).parents[2] / "bench" / "micro.json").read_text())
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
#: How far counts may be above the baseline: little if it was counted with this Python, more with another one, which
#: has other instructions. Write down lower counts with `python -m bench micro --write`.
_SLACK = 1.1 if _PYTHON in BASELINE else 1.5
_COUNTS = BASELINE.get(_PYTHON, next(iter(BASELINE.values())))["cases"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HotPath]:
    made = HotPath(tmp_path_factory.mktemp("hotpath"))
    yield made
    made.close()


def test_no_request_costs_more_than_it_did(path: HotPath) -> None:
    work = cases(path)
    assert set(work) == set(_COUNTS), "bench/micro.json is of other cases: python -m bench micro --write"
    dearer = {}
    compiled = records.speedups is not None and fast is not None
    slack = _SLACK if compiled else max(_SLACK, 1.3)  # more calls in Python for each batch
    for name, function in work.items():
        if name in COMPILED and not compiled:
            continue
        found, baseline = cost(function), _COUNTS[name]
        for measure in ("instructions", "calls", "c_calls"):
            if getattr(found, measure) > baseline[measure] * slack + 2:
                dearer[name, measure] = (getattr(found, measure), baseline[measure])
    assert not dearer, f"more than {slack:g} times the baseline in bench/micro.json: {dearer}"


def test_fetched_records_never_enter_the_process(path: HotPath) -> None:
    frame = path.produce_frame(1000, 1000)
    offset = path.parts.partitions.by_name["t", 0].log.log_end_offset
    path.ask(frame)
    fetch = path.fetch_frame(offset, 1 << 20)
    assert path.ask(fetch) > 1_000_000
    tracemalloc.start()
    try:
        path.ask(fetch)
        _, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert highest < 100_000


def test_requests_leave_nothing_behind(path: HotPath) -> None:
    """Two thousand more requests keep less than a few bytes each, which are entries of the index."""
    frames = [path.produce_frame(1, 200), path.fetch_frame(0, 1 << 16)]
    for _ in range(200):
        for frame in frames:
            path.ask(frame)
    tracemalloc.start()
    try:
        for frame in frames * 100:
            path.ask(frame)
        before, _ = tracemalloc.get_traced_memory()
        for frame in frames * 1000:
            path.ask(frame)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2000 * 16


def test_an_idle_connection_keeps_little(path: HotPath) -> None:
    """It keeps neither what was sent nor empty queues; half of the rest is the transport's."""
    frame, number = path.produce_frame(1, 20_000), 20
    transports = [path.connect()]
    transports[0].deliver(frame)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(number):
            transports.append(path.connect())
            transports[-1].deliver(bytes(bytearray(frame)))
            assert transports[-1].received()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for transport in transports:
        transport.loseConnection()
        transport.peer.close()
    assert (after - before) / number < 2800  # bytes


def test_metrics_cost_a_request_nothing_but_the_samples(path: HotPath) -> None:
    """While metrics are served, the usual requests take the same instructions; only a sampled one takes more."""
    one, fetch = path.produce_frame(1, 200), path.fetch_frame(0, 1 << 16)
    works = {"produce": lambda: path.ask(one), "fetch": lambda: path.ask(fetch)}
    before = {name: cost(work) for name, work in works.items()}
    dispatcher = path.dispatcher
    dispatcher.watch()
    after = {name: cost(work) for name, work in works.items()}
    for name in works:
        assert after[name].instructions <= before[name].instructions * 1.01, name

    def sampled() -> None:
        dispatcher.sample()
        path.ask(one)

    counted = sum(STATISTICS.durations[PRODUCE].counts)
    dearer = cost(sampled, rounds=5)
    assert sum(STATISTICS.durations[PRODUCE].counts) == counted + 15  # each round is counted three times
    assert dearer.instructions > after["produce"].instructions


def test_write_queues_cost_nothing_while_the_disk_is_quick(tmp_path: Path) -> None:
    """With `log.write.queues=slow` the usual requests take the same instructions as with `off`."""
    found: dict[str, dict[str, int]] = {}
    for mode in ("off", "slow"):
        path = HotPath(tmp_path / mode, log_write_queues=mode)
        work = cases(path)
        names = [name for name in work if name.startswith(("produce, a batch of 1", "produce, 40 batches"))]
        found[mode] = {name: cost(work[name]).instructions for name in names}
        path.close()
    assert found["off"]
    for name, instructions in found["off"].items():
        compiled = name in COMPILED and fast is not None
        assert found["slow"][name] <= instructions * (1.0 if compiled else 1.1), name


def test_every_version_of_produce_costs_the_same(path: HotPath) -> None:
    """Those before version 9, whose layout is another, too: none of them is decoded into a message."""
    found = {}
    for version in range(FIRST, FIRST_TOPIC_ID):
        frames = path.produce_frame(1, 200, version) * 5
        replies = path.ask(frames[: len(frames) // 5]) * 5
        found[version] = cost(partial(path.ask_at_once, frames, replies)).instructions
    assert max(found.values()) <= min(found.values()) * 1.05, found
