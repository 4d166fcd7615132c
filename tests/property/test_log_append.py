"""Accepting a batch by its header equals the general append: same result, same error, same bytes."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pylogd.log.errors import InvalidAppend
from pylogd.log.log import Log
from pylogd.log.validator import AppendOrigin
from pylogd.wire.records import HEADER, MAGIC
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


def outcome(log: Log, data: bytes, *, general: bool) -> tuple[object, ...]:
    """Return the result or the error of an append, with `FastAccept` or without it."""
    if general:
        log.fast_accept.segment_bytes = -1  # accept none of them by its header
    try:
        return (log.append(memoryview(data), leader_epoch=0, origin=AppendOrigin.CLIENT), None)
    except InvalidAppend as error:
        return (None, type(error), str(error))


@settings(max_examples=300, deadline=None)
@given(st.lists(batches(), min_size=1, max_size=6))
@example([batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0)] * 2)
@example([batch(b"x" * 300)] * 3)
def test_fast_and_general_append_agree(appended: list[bytes]) -> None:
    storages = MemoryStorage(segment_bytes=600), MemoryStorage(segment_bytes=600)
    fast, general = (storage.create() for storage in storages)
    for log in (fast, general):
        log.append(batch(b"first"), leader_epoch=0)
    for data in appended:
        assert outcome(fast, data, general=False) == outcome(general, data, general=True)
        assert fast.producers.to_snapshot() == general.producers.to_snapshot()
    for storage, log in zip(storages, (fast, general), strict=True):
        log.close()
        storage.check(records=False)
    for one, other in zip(fast.segments, general.segments, strict=True):
        for path in one.file_paths()[:3]:
            assert contents(storages[0].fs, path) == contents(storages[1].fs, path)
        assert one.size == other.size
