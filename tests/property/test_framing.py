"""The same frames are found, however the stream is split into chunks."""

from __future__ import annotations

import struct
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.wire import framing
from pylogd.wire.exceptions import RemoteProtocolError
from pylogd.wire.framing import FrameDecoder, FrameMemory, InvalidFrameLength
from pylogd.wire.headers import read_request_header, read_unsigned_varint, skip_tagged_fields


def drain(decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(1, 60), min_size=1))
def test_any_cut_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    decoder = FrameDecoder(40)
    frames, at, turn = [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        decoder.feed(stream[at : at + step])
        frames += drain(decoder)
        at += step
        turn += 1
    assert frames == bodies
    assert not decoder.pending


@given(
    st.lists(st.binary(max_size=40), max_size=12),
    st.lists(st.integers(1, 60), min_size=1),
    st.sampled_from([0, 10, 40]),
    st.data(),
)
def test_bytes_may_be_received_in_place(bodies: list[bytes], cuts: list[int], ahead: int, data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    decoder = FrameDecoder(40, ahead)
    frames, at, turn = [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        turn += 1
        buffer = decoder.receive_buffer()
        if buffer is not None and data.draw(st.booleans()):
            with buffer:
                step = min(step, len(buffer), len(stream) - at)
                buffer[:step] = stream[at : at + step]
            decoder.filled(step)
        else:
            del buffer
            decoder.feed(stream[at : at + step])
        at += step
        frames += drain(decoder)
    assert frames == bodies
    assert not decoder.pending


@given(
    st.lists(st.binary(max_size=100), max_size=20),
    st.lists(st.integers(1, 60), min_size=1),
    st.sampled_from([0, 50, 100]),
    st.data(),
)
def test_memory_is_used_again_only_when_nobody_looks(
    bodies: list[bytes], cuts: list[int], ahead: int, data: st.DataObject
) -> None:
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    with mock.patch.object(framing, "LARGE", 8), mock.patch.object(framing, "_UNIT", 16):
        decoder = FrameDecoder(100, ahead, FrameMemory(count=2, most=90))
        seen: list[tuple[int, memoryview]] = []
        at = turn = count = 0
        while at < len(stream):
            step = cuts[turn % len(cuts)]
            turn += 1
            buffer = decoder.receive_buffer()
            if buffer is None:
                decoder.feed(stream[at : at + step])
            else:
                with buffer:
                    step = min(step, len(buffer), len(stream) - at)
                    buffer[:step] = stream[at : at + step]
                decoder.filled(step)
            at += step
            while (frame := decoder.next_frame()) is not None:
                assert frame == bodies[count]
                if data.draw(st.booleans()):
                    seen.append((count, frame[1:]))
                count += 1
            del frame
            assert all(view == bodies[number][1:] for number, view in seen)
    assert count == len(bodies)


def test_a_large_frame_takes_the_memory_of_the_one_before_it() -> None:
    memory = FrameMemory(count=2)
    decoder = FrameDecoder(1 << 20, memory=memory)
    body = bytes(range(256)) * 1024
    taken = []
    for _ in range(3):
        decoder.feed(struct.pack(">i", len(body)) + body[:1000])
        assert decoder.next_frame() is None
        at = 1000
        while (buffer := decoder.receive_buffer()) is not None:
            with buffer:
                size = min(len(buffer), len(body) - at)
                buffer[:size] = body[at : at + size]
            decoder.filled(size)
            at += size
        frame = decoder.next_frame()
        assert frame is not None and bytes(frame) == body
        taken.append(id(frame.obj))
        del frame
    assert len(set(taken)) == 1


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=8), st.data())
def test_frames_left_undrained_survive_the_next_feed(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    cut = data.draw(st.integers(0, len(stream)))
    decoder = FrameDecoder(20)
    decoder.feed(stream[:cut])
    first = decoder.next_frame()
    frames = [] if first is None else [bytes(first)]
    decoder.feed(stream[cut:])
    assert frames + drain(decoder) == bodies


@pytest.mark.parametrize("length", [-1, -(2**31), 11, 2**31 - 1])
def test_a_length_outside_the_cap_is_refused_before_memory_is_spent(length: int) -> None:
    decoder = FrameDecoder(10)
    decoder.feed(struct.pack(">i", length) + b"x" * 20)
    with pytest.raises(InvalidFrameLength, match=str(length)):
        decoder.next_frame()


def test_a_frame_in_one_chunk_is_a_view_of_it() -> None:
    chunk = b"\0\0\0\x03abc"
    decoder = FrameDecoder(10)
    decoder.feed(chunk)
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.obj is chunk


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.data())
def test_a_chunk_that_is_used_up_is_not_kept(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    cut = data.draw(st.integers(0, len(stream)))
    decoder = FrameDecoder(20)
    for part in (stream[:cut], stream[cut:]):
        chunk = bytearray(part)
        decoder.feed(chunk)  # type: ignore[arg-type]
        drain(decoder)
        chunk.append(0)  # raises BufferError while a view of the buffer exists


@given(st.binary(max_size=30))
def test_any_bytes_are_a_header_or_a_protocol_error(data: bytes) -> None:
    try:
        body_at = read_request_header(memoryview(data))[-1]
        end = skip_tagged_fields(memoryview(data), body_at)
    except RemoteProtocolError:
        return
    assert body_at <= end <= len(data)


@given(st.integers(0, 2**32 - 1))
def test_varints_round_trip(value: int) -> None:
    encoded, rest = bytearray(), value
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    assert read_unsigned_varint(memoryview(encoded), 0) == (value, len(encoded))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x1f"])
def test_endless_and_oversized_varints_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="varint"):
        read_unsigned_varint(memoryview(data), 0)


def test_too_many_tagged_fields_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="10001 tagged fields"):
        skip_tagged_fields(memoryview(b"\x91\x4e" + bytes(100)), 0)


def test_the_memory_that_is_kept_is_bounded_in_all() -> None:
    memory = FrameMemory(count=4, most=4 << 20)
    for _ in range(4):
        memory.keep(bytearray(3 << 20))
    assert memory.take(3 << 20) is not None
    assert memory.take(1 << 20) is None, "a second one would be 6 MB"
    for _ in range(5):
        memory.keep(bytearray(1 << 20))
    assert sum(memory.take(1 << 20) is not None for _ in range(5)) == 4


def test_a_short_frame_does_not_take_the_memory_of_a_long_one() -> None:
    memory = FrameMemory()
    memory.keep(bytearray(1 << 20))
    assert memory.take((1 << 18) - 1) is None
    assert memory.take(1 << 18) is not None


def test_nothing_is_kept_while_memory_is_scarce() -> None:
    memory = FrameMemory()
    memory.keep(bytearray(1 << 20))
    memory.be_scarce(True)
    memory.keep(bytearray(1 << 20))
    memory.be_scarce(False)
    assert memory.take(1 << 20) is None
    memory.keep(bytearray(1 << 20))
    assert memory.take(1 << 20) is not None


@given(st.lists(st.integers(-1, 12), max_size=6), st.lists(st.integers(1, 20), min_size=1))
def test_complete_says_whether_there_is_a_frame_or_an_error(lengths: list[int], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">i", length) + bytes(max(length, 0)) for length in lengths)
    decoder = FrameDecoder(10)
    at = turn = 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        turn += 1
        decoder.feed(stream[at : at + step])
        at += step
        while True:
            complete = decoder.complete
            try:
                frame = decoder.next_frame()
            except framing.InvalidFrameLength:
                assert complete
                return
            assert complete == (frame is not None)
            if frame is None:
                break
