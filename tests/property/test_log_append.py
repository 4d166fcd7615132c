"""Accepting a batch by its header equals the general append: same result, same error, same bytes."""

from __future__ import annotations

from enum import Enum

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.broker.log.errors import InvalidAppend
from pylogd.broker.log.log import Log
from pylogd.broker.log.markers import encode_marker
from pylogd.broker.log.transactions import UNGUARDED, VERIFICATION_OFF, TransactionTerms
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.records import HEADER, MAGIC, TRANSACTIONAL, BatchHeader
from tests.fakes.storage import START_MS, MemoryStorage, batch, contents, fix_crc

STAMPS = st.one_of(st.integers(-2, 2), st.integers(START_MS - 5, START_MS + 5), st.just(START_MS + 3_600_001))
SMALL = st.integers(-2, 6)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Generate batches whose header fields are valid or nearly so, mostly with the matching CRC."""
    count = draw(st.integers(1, 3))
    data = batch(*[b"v"] * count, compression=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])))
    header = list(HEADER.unpack_from(data))
    for position, values in (
        (0, SMALL),
        (1, st.integers(header[1] - 1, header[1] + 1)),
        (3, st.integers(MAGIC - 1, MAGIC + 1)),
        (5, st.integers(-1, 70)),
        (6, SMALL),
        (7, STAMPS),
        (8, STAMPS),
        (9, SMALL),
        (10, SMALL),
        (11, SMALL),
        (12, SMALL),
    ):
        if draw(st.integers(0, 5)) == 0:
            header[position] = draw(values)
    payload = bytearray(data[HEADER.size :])
    if draw(st.integers(0, 5)) == 0:
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.sampled_from([0, 1, 2, 3, 10, 0x7F, 0x80, 0xFF]))
    data = HEADER.pack(*header) + payload
    if draw(st.integers(0, 9)):
        data = fix_crc(data)
    return data[: len(data) - draw(st.sampled_from([0] * 9 + [1]))]


class Terms(Enum):
    """What the caller of an append knows of the batch's transaction."""

    NONE = "the request has no transactional id"
    UNGUARDED = "nobody has asked the coordinator"
    GUARDED = "the coordinator has said that the partition is in the transaction"
    OFF = "verification is turned off"


def terms_of(log: Log, data: bytes, terms: Terms) -> TransactionTerms | None:
    """Return what the append is called with; begin a verification if need be."""
    if terms is Terms.NONE or len(data) < HEADER.size:
        return None
    if terms is Terms.GUARDED:
        header = BatchHeader._make(HEADER.unpack_from(data))
        return TransactionTerms(log.producers.begin_verification(header, True, START_MS))
    return UNGUARDED if terms is Terms.UNGUARDED else VERIFICATION_OFF


def outcome(log: Log, data: bytes, terms: Terms, *, general: bool) -> tuple[object, ...]:
    """Return the result or the error of an append, with `FastAccept` or without it."""
    if general:
        log.fast_accept.segment_bytes = -1  # accept none of them by its header
    known = terms_of(log, data, terms)
    try:
        return (log.append(memoryview(data), leader_epoch=0, origin=AppendOrigin.CLIENT, terms=known), None)
    except InvalidAppend as error:
        return (None, type(error), str(error))


def transactional(data: bytes) -> bytes:
    """Return a batch of producer 1 with the transactional attribute."""
    header = list(HEADER.unpack_from(data))
    header[5] |= TRANSACTIONAL
    header[9], header[10] = 1, max(header[10], 0)
    header[11] = max(header[11], 0)
    return fix_crc(HEADER.pack(*header) + data[HEADER.size :])


MARKERS = st.builds(
    encode_marker, st.sampled_from([1, 1, 1, 2, -1, -2]), st.integers(-1, 2), st.just(START_MS),
    committed=st.booleans(), coordinator_epoch=st.integers(0, 1),
)  # fmt: skip
OWN = st.builds(lambda stamp: batch(b"own", timestamp=stamp), st.integers(START_MS - 5, START_MS + 3_600_001))
UNNUMBERED = st.builds(
    lambda epoch: batch(b"o", producer_id=1, producer_epoch=epoch, attributes=TRANSACTIONAL), st.integers(0, 2)
)
#: A batch of a client with what is known of its transaction, or one of the broker's own, such as a marker.
APPENDS = st.one_of(
    st.tuples(batches(), st.sampled_from(Terms)),
    st.tuples(batches().map(transactional), st.sampled_from(Terms)),
    st.tuples(st.one_of(MARKERS, OWN, UNNUMBERED), st.none()),
)


def marked(log: Log, marker: bytes, *, general: bool) -> tuple[object, ...]:
    """Return the result or the error of a marker or another batch of the broker's own."""
    if general:
        log.fast_accept.own_segment_bytes = -1
    try:
        terms = TransactionTerms(version=2)
        return (log.append(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR, terms=terms), None)
    except InvalidAppend as error:
        return (None, type(error), str(error))


@settings(max_examples=400, deadline=None)
@given(st.lists(APPENDS, min_size=1, max_size=8), st.sampled_from(["producer"] * 3 + ["uncompressed", "gzip", "zstd"]))
@example([(batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0), Terms.NONE)] * 2, "producer")
@example([(batch(b"x" * 300), Terms.NONE)] * 3, "producer")
@example([(batch(b"x" * 300, compression=4), Terms.NONE)] * 3, "lz4")
@example([(transactional(batch(b"a", base_sequence=0)), terms) for terms in (Terms.GUARDED, Terms.UNGUARDED)],
         "producer")  # fmt: skip
def test_fast_and_general_append_agree(appended: list[tuple[bytes, Terms | None]], codec: str) -> None:
    storages = tuple(MemoryStorage(segment_bytes=600, compression_type=codec) for _ in range(2))
    fast, general = (storage.create() for storage in storages)
    for log in (fast, general):
        log.append(batch(b"first"), leader_epoch=0)
    for data, terms in appended:
        if terms is None:
            assert marked(fast, data, general=False) == marked(general, data, general=True)
        else:
            assert outcome(fast, data, terms, general=False) == outcome(general, data, terms, general=True)
        assert fast.producers.to_snapshot() == general.producers.to_snapshot()
        assert fast.producers.guards.keys() == general.producers.guards.keys()
        assert fast.producers.unstable.first_open == general.producers.unstable.first_open
    for storage, log in zip(storages, (fast, general), strict=True):
        log.roll(log.log_end_offset, START_MS)  # the last segment has no index files while it is small
        log.close()
        storage.check(records=False)
    for one, other in zip(fast.segments[:-1], general.segments[:-1], strict=True):
        for path in one.file_paths()[:3]:
            assert contents(storages[0].fs, path) == contents(storages[1].fs, path)
        assert one.size == other.size
