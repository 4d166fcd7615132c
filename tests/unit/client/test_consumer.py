"""Positions, offset resets, prefetching, and damaged batches."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from pylogd.base.errors import ErrorCode
from pylogd.client import (
    Closed,
    Cluster,
    Consumer,
    CorruptRecords,
    KafkaError,
    Record,
    RequestTimedOut,
    TopicPartition,
)
from pylogd.client.core.consumer import reader, record_buffer
from pylogd.client.core.consumer.fetcher import Fetcher, FetchSettings
from pylogd.client.core.consumer.reader import Reader
from pylogd.client.evented import consumer as evented_consumer
from pylogd.wire.messages import ApiKey
from pylogd.wire.messages.fetch import FetchResponse
from pylogd.wire.records import CONTROL, encode_batch
from tests.fakes import broker as fake
from tests.fakes.broker import FakeBroker
from tests.fakes.broker import refuse_fetch as refuse
from tests.fakes.clock import FakeClock

Make = Callable[..., Consumer]
T0 = TopicPartition("t", 0)


@pytest.fixture
def server() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as server:
        for start in range(0, 100, 10):
            fill(server, 0, start, 10)
        fill(server, 1, 0, 5)
        yield server


def fill(server: FakeBroker, partition: int, start: int, count: int, **options: Any) -> None:
    records = [(None, b"%d" % n, 1000 + n, ()) for n in range(start, start + count)]
    server.append(partition, encode_batch(records, **options))


@pytest.fixture
def make(server: FakeBroker) -> Iterator[Make]:
    clusters = []

    def make(**options: Any) -> Consumer:
        clusters.append(Cluster(server.address, clock=FakeClock()))
        return Consumer(clusters[-1], **options)

    yield make
    for cluster in clusters:
        cluster.close()


def read(consumer: Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    while len(records) < count:
        records += consumer.poll(60)
    return records


def test_everything_in_order(make: Make) -> None:
    consumer = make()
    consumer.assign(consumer.partitions("t"))
    records = read(consumer, 105)
    assert [r.value for r in records if r.partition == 0] == [b"%d" % n for n in range(100)]
    assert [r.offset for r in records if r.partition == 1] == list(range(5))
    assert records[0] == Record("t", records[0].partition, 0, 1000, None, b"0")
    assert [consumer.position(p) for p in consumer.assignment] == [100, 5]


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_at_every_kind_of_version(server: FakeBroker, make: Make, version: int) -> None:
    server.versions[ApiKey.FETCH] = (0, version)
    consumer = make()
    consumer.assign([("t", 0)])
    assert len(read(consumer, 100)) == 100


def test_from_the_middle_of_a_batch(make: Make) -> None:
    consumer = make()
    consumer.assign({("t", 0): 37})
    assert [r.offset for r in read(consumer, 63)] == list(range(37, 100))


def test_seeking(make: Make) -> None:
    consumer = make(max_poll_records=5)
    consumer.assign([("t", 0)])
    assert [r.offset for r in consumer.poll(60)] == [0, 1, 2, 3, 4]
    consumer.seek(("t", 0), 93)
    assert consumer.position(T0) == 93
    assert [r.offset for r in read(consumer, 7)] == list(range(93, 100))
    consumer.seek_to_beginning()
    assert consumer.poll(60)[0].offset == 0
    consumer.seek_to_end(("t", 0))
    assert consumer.position(T0) == 100
    with pytest.raises(ValueError, match="not assigned"):
        consumer.seek(("t", 1), 0)
    with pytest.raises(ValueError, match="negative"):
        consumer.seek(("t", 0), -1)


def test_assigning_again_keeps_the_place(make: Make) -> None:
    consumer = make(max_poll_records=5)
    consumer.assign([("t", 0)])
    consumer.poll(60)
    consumer.assign([("t", 0), ("t", 1)])
    assert consumer.position(T0) == 5
    consumer.assign([("t", 1)])
    assert consumer.assignment == [("t", 1)]
    assert {r.partition for r in read(consumer, 5)} == {1}


def test_limits(make: Make) -> None:
    consumer = make()
    consumer.assign([("t", 0)])
    assert len(consumer.poll(60, max_records=3)) == 3
    assert [r.offset for r in consumer.poll(60, max_records=12)] == list(range(3, 15))


def test_iteration(make: Make) -> None:
    consumer = make()
    consumer.assign([("t", 0)])
    assert [record.offset for record, _ in zip(consumer, range(30), strict=False)] == list(range(30))


def test_offsets(make: Make, server: FakeBroker) -> None:
    consumer = make()
    server.starts[0] = 10
    both = consumer.partitions("t")
    assert consumer.beginning_offsets(both) == {("t", 0): 10, ("t", 1): 0}
    assert consumer.end_offsets(both) == {("t", 0): 100, ("t", 1): 5}
    found = consumer.offsets_for_times({("t", 0): 1015, ("t", 1): 5000})
    first = found[T0]
    assert first is not None and first.offset == 10
    assert found[TopicPartition("t", 1)] is None


def test_the_next_request_is_under_way_while_records_are_decoded(make: Make, server: FakeBroker) -> None:
    consumer = make(max_poll_records=1, partition_max_bytes=150)
    consumer.assign([("t", 0)])
    consumer.poll(60)
    assert server.wait_until_asked(ApiKey.FETCH, 2)[1].topics[0].partitions[0].fetch_offset == 10


def test_an_offset_out_of_range_is_reset(make: Make, server: FakeBroker) -> None:
    server.starts[0] = 50
    consumer = make()
    consumer.assign({("t", 0): 3})
    assert read(consumer, 1)[0].offset == 50
    consumer = make(auto_offset_reset="latest")
    consumer.assign({("t", 0): 3})
    while consumer.position(T0) != 100:
        assert consumer.poll() == []
    consumer = make(auto_offset_reset="none")
    consumer.assign({("t", 0): 3})
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
        read(consumer, 1)
    with pytest.raises(KafkaError, match="no committed offset"):
        consumer.assign([("t", 1)])


def test_where_a_new_partition_begins(make: Make) -> None:
    consumer = make(auto_offset_reset="latest")
    consumer.assign([("t", 0)])
    assert consumer.position(T0) == 100
    with pytest.raises(ValueError, match="auto_offset_reset"):
        make(auto_offset_reset="middle")


@pytest.mark.parametrize(
    "act", [refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER), refuse(ErrorCode.KAFKA_STORAGE_ERROR), fake.close, fake.garbage,
            fake.cut, lambda _: FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)]
)  # fmt: skip
def test_passing_faults_are_not_reported(make: Make, server: FakeBroker, act: Any) -> None:
    server.on(ApiKey.FETCH, act, act)
    consumer = make()
    consumer.assign([("t", 0)])
    assert [r.offset for r in read(consumer, 100)] == list(range(100))


def test_lasting_faults_are_reported(make: Make, server: FakeBroker) -> None:
    server.on(ApiKey.FETCH, *[refuse(ErrorCode.LEADER_NOT_AVAILABLE)] * 200)
    consumer = make(retry_timeout=3)
    consumer.assign([("t", 0)])
    with pytest.raises(KafkaError, match="LEADER_NOT_AVAILABLE"):
        read(consumer, 1)
    server.on(ApiKey.FETCH)
    server._cues.clear()
    assert read(consumer, 1)[0].offset == 0


def test_final_errors(make: Make, server: FakeBroker) -> None:
    server.on(ApiKey.FETCH, refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    consumer = make()
    consumer.assign([("t", 0)])
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        read(consumer, 1)
    assert len(read(consumer, 100)) == 100


def test_damage_is_named_and_can_be_passed(make: Make, server: FakeBroker) -> None:
    damaged = bytearray(server.logs[0][3])
    damaged[-1] ^= 1
    server.logs[0][3] = bytes(damaged)
    consumer = make()
    consumer.assign([("t", 0)])
    assert [r.offset for r in read(consumer, 30)] == list(range(30))
    for _ in range(2):
        with pytest.raises(CorruptRecords, match=r"t-0: at offset 30.*CRC") as raised:
            read(consumer, 1)
        assert consumer.position(T0) == 30
    assert raised.value.next_offset == 40
    consumer.seek(T0, raised.value.next_offset)
    assert [r.offset for r in read(consumer, 60)] == list(range(40, 100))


def test_an_unknown_position() -> None:
    with pytest.raises(RequestTimedOut, match="t-0"):
        Reader(Fetcher(FetchSettings(), 30.0), lambda: None).position(T0)


def test_an_older_format_is_damage_too(make: Make, server: FakeBroker) -> None:
    old = bytearray(server.logs[0][0])
    old[16] = 1
    server.logs[0][0] = bytes(old)
    consumer = make()
    consumer.assign([("t", 0)])
    with pytest.raises(CorruptRecords, match="magic 1"):
        read(consumer, 1)


def test_records_before_a_bad_header_are_read(make: Make, server: FakeBroker) -> None:
    old = bytearray(server.logs[0][2])
    old[16] = 1
    server.logs[0][2] = bytes(old)
    consumer = make()
    consumer.assign([("t", 0)])
    assert [r.offset for r in read(consumer, 20)] == list(range(20))
    with pytest.raises(CorruptRecords, match="magic 1"):
        read(consumer, 1)


def test_control_batches_are_passed_over(make: Make, server: FakeBroker) -> None:
    fill(server, 1, 5, 1, attributes=CONTROL)
    fill(server, 1, 6, 2)
    fill(server, 1, 8, 1, attributes=CONTROL)
    consumer = make()
    consumer.assign([("t", 1)])
    assert [r.offset for r in read(consumer, 7)] == [0, 1, 2, 3, 4, 6, 7]
    consumer.poll()
    assert consumer.position(("t", 1)) == 9


def test_a_poll_without_records_returns_after_its_timeout(make: Make) -> None:
    consumer = make()
    assert consumer.poll(0.1) == []
    consumer.assign({("t", 0): 100})
    assert consumer.poll() == []
    consumer.close()
    with pytest.raises(Closed):
        consumer.poll()


class Interrupted(BaseException):
    """An exception like KeyboardInterrupt, which pytest would catch itself."""


def test_signals_that_raise_inside_of_poll_lose_nothing(server: FakeBroker) -> None:
    """A signal handler may raise at any instruction, as Ctrl-C does: the next call continues where the last one was
    cut.
    """
    for start in range(100, 3000, 10):
        fill(server, 0, start, 10)
    seen: list[int] = []
    interrupts = 0

    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame is not None and "/coverage/" in frame.f_code.co_filename:  # which may hold a lock of its own
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
            return
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Consumer(server.address, max_poll_records=50, partition_max_bytes=2000, prefetch=False) as consumer:
            consumer.assign({("t", 0): 0})
            position = 0
            while position < 3000 or interrupts <= 20:
                if position >= 3000:  # all was read before there were enough signals: read again
                    consumer.seek(("t", 0), 0)
                    seen.clear()
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 + (interrupts % 17) * 0.0003)
                    records = consumer.poll(5)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    seen += [record.offset for record in records]
                except Interrupted:
                    interrupts += 1
                    if interrupts > 300:
                        signal.signal(signal.SIGALRM, signal.SIG_IGN)
                    # what an interrupted call had taken, but not returned, is read again
                    consumer.seek(("t", 0), seen[-1] + 1 if seen else 0)
                position = seen[-1] + 1 if seen else 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == list(range(3000))
    assert interrupts > 20


@pytest.mark.parametrize("module", [evented_consumer, reader, record_buffer])
def test_a_signal_that_raises_at_any_line_of_a_poll_loses_nothing(server: FakeBroker, module: ModuleType) -> None:
    """The next poll continues at the same position, although nobody seeks."""
    file = inspect.getsourcefile(module)
    with Consumer(server.address, prefetch=False) as consumer:
        consumer.assign({("t", 0): 0})
        expected = [record.offset for record in consumer.poll(5)]
        left = line = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code.co_filename != file:
                return None
            left -= event == "line"
            if left == 0 and event == "line":
                raise Interrupted
            return trace

        raised, before = True, sys.gettrace()
        while raised:
            line += 1
            left, raised = line, False
            consumer.seek(("t", 0), 0)
            sys.settrace(trace)
            try:
                consumer.poll(5)
            except Interrupted:
                raised = True
            finally:
                sys.settrace(before)  # that of `make coverage`
            if not raised:
                consumer.seek(("t", 0), 0)
            assert [record.offset for record in consumer.poll(5)] == expected, f"after line {line}"
    assert line > 20


def test_a_consumer_that_is_dropped_leaves_no_thread(server: FakeBroker) -> None:
    consumer = Consumer(server.address)
    consumer.assign([("t", 0)])
    consumer.poll(5)
    assert consumer._background is not None
    thread = consumer._background._thread
    assert thread is not None and thread.is_alive()
    del consumer
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_close_from_another_thread_ends_a_poll_that_waits_for_nothing() -> None:
    consumer = Consumer("127.0.0.1:1", prefetch=False)
    raised: list[BaseException] = []
    begun = threading.Event()

    def poll() -> None:
        begun.set()
        try:
            consumer.poll(3600)
        except Closed as error:
            raised.append(error)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    assert begun.wait(60)
    consumer.close(60)
    thread.join(60)
    assert not thread.is_alive() and len(raised) == 1


def test_a_wake_up_that_comes_while_poll_takes_in_what_is_there_still_ends_it() -> None:
    clock = FakeClock()
    consumer = Consumer(Cluster("127.0.0.1:1", clock=clock), prefetch=False)
    pump = consumer._consumer.pump
    poll = clock.poll
    longest: list[float] = []

    def close_then_pump() -> None:
        consumer._consumer.closing_soon()  # what `close` does first, in another thread
        consumer._loop.wake()
        pump()

    def note_seconds(sockets: Any, seconds: float) -> Any:
        longest.append(seconds)
        return poll(sockets, seconds)

    consumer._consumer.pump = close_then_pump  # type: ignore[method-assign]
    clock.poll = note_seconds  # type: ignore[method-assign, assignment]
    with pytest.raises(Closed):
        consumer.poll(3600)
    assert max(longest) == 0


@pytest.mark.parametrize("module", [evented_consumer, reader, record_buffer])
def test_a_signal_that_raises_at_any_line_of_an_iteration_loses_nothing(server: FakeBroker, module: ModuleType) -> None:
    """The records come in order and once, however often the loop is begun again."""
    file = inspect.getsourcefile(module)
    left = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != file:
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            raise Interrupted
        return trace

    with Consumer(server.address, prefetch=False, max_poll_records=7) as consumer:
        consumer.assign({("t", 0): 0})
        seen: list[int] = []
        interrupts = 0
        before = sys.gettrace()
        while len(seen) < 100:
            interrupts += 1
            left = 11 * interrupts
            sys.settrace(trace)
            try:
                for record in consumer:
                    seen.append(record.offset)
                    if len(seen) == 100:
                        break
            except Interrupted:
                pass
            finally:
                sys.settrace(before)
    assert seen == list(range(100))
    assert interrupts > 5
