"""Produce refuses batches that a consumer could not decode, and checks records without blocking the reactor."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from pylogd.base.errors import CloseConnection, ErrorCode
from pylogd.wire.compression import CompressionType
from pylogd.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from pylogd.wire.records import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    encode_batch,
    encode_records,
    iter_batches,
    speedups,
    varint,
)
from pylogd.wire.validation import INLINE_BYTES
from tests.fakes.metadata import result_of
from tests.fakes.parts import NOW_MS, Parts, decoded, records_in
from tests.fakes.storage import with_header

INVALID, TIMESTAMP = ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP
NAMELESS = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def batch(*values: bytes, stamp: int = NOW_MS, key: bytes | None = b"k", **options: Any) -> bytes:
    return encode_batch([(key, value, stamp, ()) for value in values or (b"one", b"two", b"three")], **options)


def with_records(payload: bytes, count: int = 3, **fields: int) -> bytes:
    """Return a batch with a valid header and these bytes as its records."""
    head = with_header(batch()[:HEADER_SIZE], batch_length=HEADER_SIZE - 12 + len(payload), record_count=count)
    return with_header(head + payload, **{"last_offset_delta": count - 1, **fields})


def record(delta: int, *, body: bytes = b"\x02k\x02v\x00", stamp: int = 0, longer: int = 0) -> bytes:
    """Return a record with these fields; its length field is too large by `longer`."""
    fields = b"\0" + varint(stamp) + varint(delta) + body
    return varint(len(fields) + longer) + fields


def of(*records: bytes, **fields: int) -> bytes:
    return with_records(b"".join(records), len(records), **fields)


#: name -> batch, error code, and the index of the faulty record, None if the whole batch is refused
POISON: dict[str, tuple[Callable[[], bytes], ErrorCode, int | None]] = {
    "garbage": (lambda: with_records(b"\xfe\xed\xfa\xce" * 20), INVALID, 0),
    "zeros": (lambda: with_records(bytes(80)), INVALID, 0),
    "two batches": (lambda: batch() * 2, INVALID, None),
    "two compressed batches": (lambda: batch(compression=4) * 2, INVALID, None),
    "two large batches": (lambda: batch(b"x" * INLINE_BYTES) + batch(b"y" * INLINE_BYTES), INVALID, None),
    "no records at all": (lambda: with_records(b""), INVALID, 0),
    "fewer records than it says": (lambda: of(record(0), record(1), record_count=3), INVALID, None),
    "more records than it says": (
        lambda: of(record(0), record(1), record(2), record_count=2, last_offset_delta=1), INVALID, 1,
    ),
    "the same delta twice": (lambda: of(record(0), record(1), record(1)), INVALID, 2),
    "a delta left out": (lambda: of(record(0), record(2)), INVALID, 1),
    "deltas that begin at 1": (lambda: of(record(1), record(2)), INVALID, 0),
    "a negative delta": (lambda: of(record(-1)), INVALID, 0),
    "a length that is too large": (lambda: of(record(0, longer=1), record(1)), INVALID, 0),
    "a length that is too small": (lambda: of(record(0), record(1, longer=-1)), INVALID, 1),
    "a negative length": (lambda: of(varint(-9) + bytes(20)), INVALID, 0),
    "a key of length -2": (lambda: of(record(0, body=b"\x03\x02v\x00")), INVALID, 0),
    "a value over the end": (lambda: of(record(0, body=b"\x02k\x7ev\x00")), INVALID, 0),
    "a header without a key": (lambda: of(record(0, body=b"\x02k\x02v\x02\x01\x01")), INVALID, 0),
    "too many headers": (lambda: of(record(0, body=b"\x02k\x02v\x7e")), INVALID, 0),
    "a varint too long for Java": (lambda: of(record(0, body=b"\x82\x80\x80\x80\x80\x00k\x02v\x00")), INVALID, 0),
    "a time stamp over 64 bits": (lambda: of(record(0, stamp=(1 << 63) - 1)), INVALID, 0),
    "gzip on plain records": (lambda: with_header(batch(), attributes=1), INVALID, None),
    "snappy on plain records": (lambda: with_header(batch(), attributes=2), INVALID, None),
    "lz4 on plain records": (lambda: with_header(batch(), attributes=3), INVALID, None),
    "zstd on plain records": (lambda: with_header(batch(), attributes=4), INVALID, None),
    "zstd on gzip": (lambda: with_header(batch(compression=1), attributes=4), INVALID, None),
    "nothing on gzip": (lambda: with_header(batch(compression=1), attributes=0), INVALID, 0),
    "transactional": (lambda: batch(attributes=TRANSACTIONAL, producer_id=5, producer_epoch=0, base_sequence=0),
                      NAMELESS, None),
    "transactional without a producer": (lambda: batch(attributes=TRANSACTIONAL), INVALID, None),
    "control": (lambda: batch(attributes=CONTROL), INVALID, None),
    "transactional control": (lambda: batch(attributes=CONTROL | TRANSACTIONAL), INVALID, None),
    "a delete horizon": (lambda: batch(attributes=DELETE_HORIZON), INVALID, None),
    "an unused bit": (lambda: batch(attributes=0x80), INVALID, None),
    "the top bit": (lambda: with_header(batch(), attributes=-0x8000), INVALID, None),
    "the append's time": (lambda: batch(attributes=LOG_APPEND_TIME), TIMESTAMP, None),
    "producer -2": (lambda: with_header(batch(), producer_id=-2), INVALID, None),
    "a producer without an epoch": (lambda: batch(producer_id=5, base_sequence=0), INVALID, None),
    "a producer without a sequence": (lambda: batch(producer_id=5, producer_epoch=0), INVALID, None),
    "a record of the day after tomorrow": (
        lambda: of(record(0), record(1, stamp=2 * 86_400_000)), TIMESTAMP, 1,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def checked(parts: Parts) -> None:
    """Have records checked without the compiled loop too."""
    parts.settings.set_dynamic({"log.validate.records": "true"}, {})


def ask(parts: Parts, topic: str, *records: bytes, acks: int = 1) -> Any:
    """Return the responses to a request, or a Deferred of them."""
    rows = [PartitionProduceData(index, memoryview(one)) for index, one in enumerate(records)]
    return parts.ask(ProduceRequest(None, acks, 1000, [TopicProduceData(topic, partition_data=rows)]), 10)


def answers(result: Any) -> list[Any]:
    if isinstance(result, Deferred):
        result = result_of(result)
    if not isinstance(result, ProduceResponse):
        result = decoded(result, ProduceRequest.API_KEY, 10)
    found: list[Any] = result.responses[0].partition_responses
    return found


def read(parts: Parts, topic: str, index: int = 0) -> list[Any]:
    log = parts.partitions.by_name[topic, index].log
    return records_in(log.read(0, 1 << 24, allow_cold=True)) if log.log_end_offset else []


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": "compact"}], ids=["delete", "compact"])
def test_invalid_batches_are_refused(parts: Parts, name: str, settings: dict[str, str]) -> None:
    make, code, place = POISON[name]
    options: dict[str, Any] = dict(settings)
    parts.create("t", **options)
    for count in (0, 3):  # as the first batch of a log, which takes the general path, and after another one
        (answer,) = answers(ask(parts, "t", make()))
        assert ErrorCode(answer.error_code) is code
        assert answer.error_message
        assert answer.base_offset == -1
        if place is not None:
            assert [one.batch_index for one in answer.record_errors] == [place]
            assert answer.record_errors[0].batch_index_error_message
        assert len(read(parts, "t")) == count
        (answer,) = answers(ask(parts, "t", batch()))
        assert (answer.error_code, answer.base_offset) == (0, count)


def test_a_wrong_max_timestamp_is_corrected(parts: Parts) -> None:
    """As in Kafka: some clients leave the field empty, some set the last record's time stamp."""
    parts.create("t")
    for codec in CompressionType:
        rows = [(b"k", b"v", NOW_MS + at, ()) for at in (1, 9, 4)]
        good = encode_batch(rows, compression=codec)
        wrong = [-1, NOW_MS] if codec else [-1, NOW_MS, NOW_MS + 4, NOW_MS + 10]
        for stamp in wrong:
            (answer,) = answers(ask(parts, "t", with_header(good, max_timestamp=stamp)))
            assert answer.error_code == 0
    log = parts.partitions.by_name["t", 0].log
    found = log.read(0, 1 << 20, allow_cold=True)
    assert found is not None
    headers = [header for header, _ in iter_batches(found.read())]
    assert len(headers) == 4 + 4 * 2
    assert {header.max_timestamp for header in headers} == {NOW_MS + 9}
    assert len(read(parts, "t")) == 3 * len(headers)  # which checks the CRCs


def test_settings_decide_what_is_checked(tmp_path: Any) -> None:
    broken = encode_batch([(b"k", b"v" * 50, NOW_MS, ())] * 3, compression=4)[:-4]
    broken = with_header(broken, batch_length=len(broken) - 12)
    lies = with_header(batch(compression=4), record_count=2, last_offset_delta=1)
    garbage = with_records(b"\xfe\xed\xfa\xce" * 20)
    for settings, refused in [
        ({}, [False, False, speedups is not None]),
        ({"log_validate_records": "true"}, [False, False, True]),
        ({"log_validate_records": "false"}, [False, False, False]),
        ({"log_validate_compressed": "true"}, [True, True, speedups is not None]),
        ({"log_message_timestamp_before_max_ms": "1000000"}, [True, True, True]),
        ({"log_message_timestamp_type": "LogAppendTime", "log_message_timestamp_before_max_ms": "1000000"},
         [False, False, speedups is not None]),
    ]:  # fmt: skip
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        parts = Parts(directory, **settings)
        try:
            parts.create("t")
            answers(ask(parts, "t", batch()))
            for data, is_refused in zip([broken, lies, garbage], refused, strict=True):
                (answer,) = answers(ask(parts, "t", data))
                assert answer.error_code == (INVALID if is_refused else 0)
        finally:
            parts.close()


def test_an_old_record_inside_a_batch_is_found(parts: Parts) -> None:
    parts.create("t", message_timestamp_before_max_ms="1000")
    for codec in CompressionType:
        rows = [(b"k", b"v", stamp, ()) for stamp in (NOW_MS, NOW_MS - 1001, NOW_MS - 1000)]
        (answer,) = answers(ask(parts, "t", encode_batch(rows, compression=codec)))
        assert answer.error_code == TIMESTAMP
        assert [one.batch_index for one in answer.record_errors] == [1]
        (answer,) = answers(ask(parts, "t", encode_batch(rows[::2], compression=codec)))
        assert answer.error_code == 0


def test_a_decompression_bomb_is_refused(parts: Parts) -> None:
    parts.create("t", cleanup_policy="compact", max_message_bytes="1000")
    for codec in list(CompressionType)[1:]:
        bomb = encode_batch([(b"k", bytes(16_100), NOW_MS, ())], compression=codec)
        if len(bomb) <= 1000:
            assert answers(ask(parts, "t", bomb))[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert not read(parts, "t")


LARGE = ("pad", bytes(1 << 16))  # decompressing it on the reactor thread would take too long


def many(count: int, codec: int, first: int) -> bytes:
    """Return records with numbers as values; compressed ones have to be checked in a thread."""
    headers = [LARGE] if codec else []
    return encode_batch([(b"k", b"%d" % (first + at), NOW_MS, headers) for at in range(count)], compression=codec)


class TestInAThread:
    """Compressed records are checked in a thread, and later batches for the same partition wait for that."""

    @pytest.fixture
    def held(self, parts: Parts) -> Parts:
        parts.create("c", partitions=2, cleanup_policy="compact")
        parts.threads.hold = True
        return parts

    def test_the_order_of_appends_is_kept(self, held: Parts) -> None:
        sent = [ask(held, "c", many(2, codec, 2 * at)) for at, codec in enumerate((4, 0, 0, 2, 0))]
        assert all(isinstance(one, Deferred) and not one.called for one in sent)
        assert not read(held, "c")
        assert len(held.threads.held) == 1
        held.threads.release()
        assert [answers(one)[0].base_offset for one in sent] == [0, 2, 4, 6, 8]
        assert [int(one.value) for one in read(held, "c")] == list(range(10))
        assert not isinstance(ask(held, "c", many(1, 0, 0)), Deferred)

    def test_batches_are_compressed_anew_in_a_thread(self, held: Parts) -> None:
        """Also small ones, whose records could be checked at once, and with those that have the codec in order."""
        held.threads.hold = False
        held.create("z", compression_type="zstd", compression_zstd_level="9")
        held.threads.hold = True
        sent = [ask(held, "z", many(2, codec, 2 * at)) for at, codec in enumerate((0, 4, 1, 2, 3))]
        assert all(isinstance(one, Deferred) and not one.called for one in sent)
        assert not read(held, "z")
        held.threads.release()
        assert [answers(one)[0].base_offset for one in sent] == [0, 2, 4, 6, 8]
        assert [int(one.value) for one in read(held, "z")] == list(range(10))
        found = held.partitions.by_name["z", 0].log.read(0, 1 << 24, allow_cold=True)
        assert found is not None
        assert {header.compression for header, _ in iter_batches(found.read())} == {4}
        assert not isinstance(ask(held, "z", many(1, 4, 0)), Deferred)

    def test_partitions_do_not_wait_for_each_other(self, held: Parts) -> None:
        waiting = ask(held, "c", many(2, 4, 0), many(2, 0, 0))
        assert not read(held, "c")
        assert len(read(held, "c", 1)) == 2
        held.threads.release()
        assert [one.error_code for one in answers(waiting)] == [0, 0]
        assert len(read(held, "c")) == 2

    def test_idempotent_batches_stay_in_sequence(self, held: Parts) -> None:
        def numbered(at: int, codec: int) -> bytes:
            rows = [(b"k", b"v", NOW_MS, [LARGE])]
            return encode_batch(rows, compression=codec, producer_id=7, producer_epoch=0, base_sequence=at)

        sent = [ask(held, "c", numbered(at, 4 if at % 2 else 0), acks=-1) for at in (0, 1, 2, 3, 3, 5)]
        held.threads.release()
        found = [answers(one)[0] for one in sent]
        assert [one.base_offset for one in found[:5]] == [0, 1, 2, 3, 3]
        assert found[5].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_refused_one_does_not_stop_those_behind_it(self, held: Parts) -> None:
        bad = with_header(many(2, 4, 0), record_count=3, last_offset_delta=2)
        keyless = encode_batch([(None, b"v", NOW_MS, [LARGE])] * 3, compression=1)
        sent = [ask(held, "c", bad), ask(held, "c", keyless), ask(held, "c", many(1, 0, 7))]
        held.threads.release()
        found = [answers(one)[0] for one in sent]
        assert [one.error_code for one in found] == [INVALID, INVALID, 0]
        assert [one.batch_index for one in found[1].record_errors] == [0, 1, 2]
        assert [one.value for one in read(held, "c")] == [b"7"]

    def test_a_client_that_leaves_takes_nothing_back(self, held: Parts) -> None:
        first, second = ask(held, "c", many(1, 4, 0)), ask(held, "c", many(1, 0, 1))
        failures: list[Any] = []
        first.addErrback(failures.append)
        first.cancel()
        assert len(failures) == 1
        held.threads.release()
        assert answers(second)[0].base_offset == 1
        assert [one.value for one in read(held, "c")] == [b"0", b"1"]

    def test_acks_0(self, held: Parts) -> None:
        good, bad = ask(held, "c", many(1, 4, 0), acks=0), ask(held, "c", batch(key=None), acks=0)
        failures: list[Any] = []
        bad.addErrback(failures.append)
        held.threads.release()
        assert result_of(good) is None
        assert failures[0].check(CloseConnection)
        assert len(read(held, "c")) == 1

    def test_a_partition_that_is_deleted_meanwhile(self, held: Parts) -> None:
        sent = [ask(held, "c", many(1, 4, 0)), ask(held, "c", many(1, 0, 0))]
        held.set_state("c", leader=2, replicas=(1, 2), isr=(1, 2))
        held.threads.release()
        for one in sent:
            (answer,) = answers(one)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert answer.current_leader.leader_id == 2

    def test_settings_that_change_meanwhile(self, parts: Parts) -> None:
        """If the topic becomes a compacted one meanwhile, the records are checked again for missing keys."""
        parts.create("d", message_timestamp_type="LogAppendTime")
        parts.settings.set_dynamic({"log.validate.records": "true", "log.validate.compressed": "true"}, {})
        parts.threads.hold = True
        waiting = ask(parts, "d", encode_batch([(None, b"v", NOW_MS, [LARGE])], compression=4))
        log = parts.partitions.by_name["d", 0].log
        log.config = log.config._replace(cleanup_policy=frozenset({"compact"}))
        parts.threads.release()
        assert answers(waiting)[0].error_code == INVALID

    def test_few_checks_run_at_the_same_time(self, parts: Parts) -> None:
        """Each check may take sixteen times max.message.bytes of memory."""
        parts.create("c", partitions=5, cleanup_policy="compact")
        parts.threads.hold = True
        sent = [ask(parts, "c", *[many(1, 4, 0)] * 5)]
        assert len(parts.threads.held) == 2
        parts.threads.release()
        assert [one.error_code for one in answers(sent[0])] == [0] * 5

    def test_a_large_batch_that_is_not_compressed(self, parts: Parts) -> None:
        parts.create("large", max_message_bytes="4000000")
        parts.threads.hold = True
        assert not isinstance(ask(parts, "large", batch(bytes(INLINE_BYTES - 100))), Deferred)
        waiting = ask(parts, "large", batch(bytes(INLINE_BYTES)))
        assert isinstance(waiting, Deferred)
        parts.threads.release()
        assert answers(waiting)[0].base_offset == 1


def test_many_partitions_in_a_large_request(parts: Parts) -> None:
    """Each check is short, but all together are not. Later batches of the same request keep their order."""
    parts.create("wide", partitions=6)
    parts.threads.hold = True
    half = INLINE_BYTES // 2
    rows = [PartitionProduceData(index, memoryview(batch(bytes(half), key=b"%d" % index))) for index in (0, 1, 2, 3)]
    # this batch needs no check of its records
    rows += [PartitionProduceData(4, memoryview(batch(bytes(half), compression=4)))]
    rows += [PartitionProduceData(2, memoryview(batch(b"second")))]
    waiting = parts.ask(ProduceRequest(None, 1, 1000, [TopicProduceData("wide", partition_data=rows)]), 9)
    ends = [parts.partitions.by_name["wide", index].log.log_end_offset for index in range(5)]
    assert ends == [1, 0, 0, 0, 1]
    parts.threads.release()
    assert [(one.error_code, one.base_offset) for one in answers(waiting)] == [(0, 0)] * 5 + [(0, 1)]


def test_a_small_compressed_batch_needs_no_thread(parts: Parts) -> None:
    parts.create("c", cleanup_policy="compact")
    parts.threads.hold = True
    for at, codec in enumerate(CompressionType):
        result = ask(parts, "c", batch(compression=codec))
        assert not isinstance(result, Deferred)
        assert answers(result)[0].base_offset == 3 * at


def test_the_records_of_a_batch_are_found(parts: Parts) -> None:
    """The batches built by hand above are valid but for the fault that their name says."""
    parts.create("t")
    good = [of(record(0), record(1), record(2)), with_records(encode_records([(b"k", b"v", NOW_MS, ())], NOW_MS), 1)]
    for data in good:
        assert answers(ask(parts, "t", data))[0].error_code == 0
    assert struct.unpack_from(">i", good[0], 57) == (3,)
