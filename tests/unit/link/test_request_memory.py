"""The bound on the memory of large requests: which connections are read, wait, or are closed."""

from __future__ import annotations

from twisted.internet.task import Clock

from pylogd.link.request_memory import LEAST_BYTES, RequestMemory
from tests.fakes.uploads import FakeUpload

CHUNK = LEAST_BYTES
LIMIT = 10 * CHUNK


class Upload(FakeUpload):
    """A connection that sends one request of `size` bytes in chunks."""

    def __init__(self, memory: RequestMemory, size: int = 10 * CHUNK) -> None:
        super().__init__(memory, size, received=1)

    def receive(self) -> bool:
        """Receive a chunk if the bound allows it; return whether the whole request has arrived."""
        if self.paused:
            return False
        self.partial_bytes += CHUNK
        return self.partial_bytes > self.size or self.share.extend(CHUNK) < 0


def make(limit: int = LIMIT) -> tuple[RequestMemory, Clock]:
    clock = Clock()
    return RequestMemory(clock, limit, patience=30.0), clock


def serve_all(memory: RequestMemory, uploads: list[Upload]) -> int:
    """Receive all uploads, a chunk of each in turn, and answer them. Return the most memory that was in use."""
    left, highest = list(uploads), 0
    for _ in range(2000):
        for upload in list(left):
            if upload.receive():
                upload.answer()
                left.remove(upload)
            highest = max(highest, memory.used)
    assert not left
    return highest


def test_all_are_served_within_the_bound_and_one_request_more() -> None:
    memory, _ = make()
    uploads = [Upload(memory) for _ in range(12)]
    highest = serve_all(memory, uploads)
    assert highest <= LIMIT + uploads[0].size + 12 * 2 * CHUNK, "the first chunk of each comes before it asks"
    assert (memory.used, memory.waiting) == (0, 0)


def test_the_first_that_is_large_has_room_for_all_of_it_within_the_bound() -> None:
    memory, _ = make(100 * CHUNK)
    uploads = [Upload(memory, 90 * CHUNK) for _ in range(12)]
    highest = serve_all(memory, uploads)
    assert highest <= 140 * CHUNK, "a quarter of the bound for the others, and what one read brings"
    assert (memory.used, memory.waiting) == (0, 0)


def test_a_large_request_that_does_not_progress_leaves_others_a_part() -> None:
    memory, clock = make(100 * CHUNK)
    stuck = Upload(memory, 90 * CHUNK)
    for _ in range(10):
        stuck.receive()
    for _ in range(20):
        upload = Upload(memory, 15 * CHUNK)
        assert any(upload.receive() for _ in range(30))
        upload.answer()
    others = [Upload(memory, 20 * CHUNK) for _ in range(4)]
    for _ in range(30):
        for upload in others:
            upload.receive()
    assert any(one.paused for one in others)
    clock.advance(31)
    memory.check()
    assert stuck.closed_for
    assert not any(one.paused for one in others)


def test_those_that_wait_continue_in_their_order() -> None:
    memory, _ = make()
    uploads = [Upload(memory) for _ in range(4)]
    for _ in range(20):
        for upload in uploads:
            upload.receive()
    active = [one for one in uploads if not one.paused]
    assert len(active) == 1, "one goes on in any case"
    waiting = [one for one in uploads if one.paused]
    active[0].answer()
    assert not waiting[0].paused
    assert waiting[0].share.number < waiting[-1].share.number


def test_one_request_larger_than_the_bound_is_served() -> None:
    memory, _ = make(CHUNK // 2)
    upload = Upload(memory)
    assert any(upload.receive() for _ in range(20))
    upload.answer()
    assert memory.used == 0


def test_without_a_bound_nobody_waits() -> None:
    memory, _ = make(-1)
    uploads = [Upload(memory) for _ in range(50)]
    assert all([one.receive() for _ in range(12)][-1] for one in uploads)
    assert memory.waiting == 0


def test_a_slow_request_is_closed_while_others_wait_for_memory() -> None:
    memory, clock = make()
    slow = Upload(memory, 9 * CHUNK)
    for _ in range(8):
        slow.receive()
    other = Upload(memory)
    while not other.paused:
        other.receive()
    clock.advance(29)
    memory.check()
    assert not slow.closed_for
    clock.advance(2)
    memory.check()
    assert "request.receive.timeout.ms" in slow.closed_for
    assert not other.paused


def test_a_lost_connection_releases_its_memory() -> None:
    memory, _ = make()
    first, second, third = (Upload(memory) for _ in range(3))
    for _ in range(20):
        for one in (first, second, third):
            one.receive()
    for one in (first, second, third):
        one.share.release()
    assert (memory.used, memory.waiting) == (0, 0)


def test_a_larger_bound_lets_them_continue() -> None:
    memory, _ = make()
    uploads = [Upload(memory) for _ in range(4)]
    for _ in range(20):
        for upload in uploads:
            upload.receive()
    memory.limit = 100 * LIMIT
    memory.check()
    assert not any(one.paused for one in uploads)


def test_slow_senders_keep_no_memory_from_others() -> None:
    memory, _ = make(100 * CHUNK)
    tiny = [Upload(memory) for _ in range(90)]
    for one in tiny:
        one.share.extend(1 << 20)
    upload = Upload(memory, 3 * CHUNK)
    assert any(upload.receive() for _ in range(10))


def test_a_long_request_is_served_when_slow_senders_had_their_time() -> None:
    memory, clock = make(100 * CHUNK)
    tiny = [Upload(memory) for _ in range(90)]
    for one in tiny:
        one.share.extend(1 << 20)
    upload = Upload(memory, 50 * CHUNK)
    assert not any(upload.receive() for _ in range(60))
    clock.advance(31)
    sweeps = 0
    while not any(upload.receive() for _ in range(60)):
        memory.check()
        sweeps += 1
        assert sweeps <= len(tiny)
    assert any(one.closed_for for one in tiny)


def test_no_long_request_grows_beside_another_one_that_has_grown() -> None:
    """Whoever began first could once continue in any case, while a later one kept what it had and waited behind it."""
    memory, _ = make(100 * CHUNK)
    uploads = [Upload(memory, 90 * CHUNK) for _ in range(12)]
    for upload in uploads:
        upload.receive()
    highest = 0
    for upload in reversed(uploads):
        for _ in range(89):
            upload.receive()
            highest = max(highest, memory.used)
    assert highest <= (25 + 90) * CHUNK
    for _ in uploads:  # each that leaves lets another one go on, and so all arrive
        while not any(one.receive() for one in uploads if one.partial_bytes):
            pass
        highest = max(highest, memory.used)
        next(one for one in uploads if one.partial_bytes > one.size).answer()
    assert highest <= (25 + 90 + 12) * CHUNK, "the first chunk of each comes before it asks"
    assert (memory.used, memory.waiting) == (0, 0)


def test_only_as_many_are_closed_as_the_first_waiting_request_needs() -> None:
    memory, clock = make(100 * CHUNK)
    tiny = [Upload(memory) for _ in range(200)]
    for one in tiny:
        one.share.extend(1 << 20)
    assert memory.waiting > 90
    clock.advance(31)
    memory.check()
    closed = [one for one in tiny if one.closed_for]
    assert closed == tiny[: len(closed)]
    assert 1 <= len(closed) < 5


def test_memory_is_scarce_until_half_of_it_is_free() -> None:
    memory, _ = make()
    told: list[bool] = []
    memory.on_scarce = lambda: told.append(memory.scarce)
    uploads = [Upload(memory, 4 * CHUNK) for _ in range(3)]
    for upload in uploads:
        upload.partial_bytes = 4 * CHUNK
        upload.share.extend(CHUNK)
    assert told == [True]
    assert uploads[0].share.chunk(10 * CHUNK) == LEAST_BYTES
    uploads[0].answer()
    assert memory.scarce, "more than half of it is still in use"
    for upload in uploads[1:]:
        upload.answer()
    assert told == [True, False]
    assert uploads[0].share.chunk(10 * CHUNK) == 10 * CHUNK
    memory.limit = 0
    memory.check()
    memory.limit = -1
    memory.check()
    assert told == [True, False] * 2
