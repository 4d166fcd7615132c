"""The bound on the memory of large requests holds whatever clients do, and whoever sends is served."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from pylogd.link.request_memory import LONG_PART, OTHERS_PART, RequestMemory
from tests.fakes.uploads import FakeUpload

LIMIT = 3200
LONGEST = 3000
UNASKED = 8  # bytes that are there before a connection can ask


class Sender(FakeUpload):
    """A connection that sends a request of `size` bytes, which then may have to wait behind another one."""

    def __init__(self, memory: RequestMemory, size: int) -> None:
        super().__init__(memory, size, received=UNASKED)
        self.served = False

    @property
    def open(self) -> bool:
        return not self.closed_for and not self.served

    def send(self, count: int, *, waits: bool = False) -> None:
        """Send up to `count` bytes. `waits`: the whole request is not taken yet."""
        count = min(count, self.size - self.partial_bytes)
        if self.open and not self.paused and count and self.share.extend(count):
            self.partial_bytes += min(count, self.share.charged - self.partial_bytes)
        if self.partial_bytes >= self.size and not waits:
            self.end()

    def end(self) -> None:
        self.answer()
        self.served = True

    def leave(self) -> None:
        if self.open:
            self.cut("the client left")


SIZES = st.sampled_from((90, 800, LONGEST, LONGEST, LONGEST))
#: What happens, to which sender, and how many bytes it sends or seconds pass.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("send",) * 16 + ("begin", "hold", "finish", "leave", "wait")),
        st.integers(0, 3),
        st.sampled_from((20, 100, 800, 800, 800)),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=200)
@given(st.lists(SIZES, min_size=2, max_size=6), STEPS)
def test_requests_stay_within_the_bound_and_all_that_send_are_served(
    sizes: list[int], steps: list[tuple[str, int, int]]
) -> None:
    clock = Clock()
    memory = RequestMemory(clock, LIMIT, patience=30.0)
    senders = [Sender(memory, size) for size in sizes]

    def check() -> None:
        assert memory.used <= LIMIT * (OTHERS_PART + LONG_PART) + LONGEST + UNASKED * len(senders)
        assert sum(one.partial_bytes for one in senders if one.open) <= memory.used + UNASKED * len(senders)

    for step, which, number in steps:
        one = senders[which % len(senders)]
        if step == "begin":
            senders.append(Sender(memory, number + 20))
        elif step == "wait":
            clock.advance(number / 10)
            memory.check()
        elif step == "leave":
            one.leave()
        else:
            one.send(LONGEST if step == "finish" else number, waits=step == "hold")
        check()
    for _ in range(5 * len(senders) + 5):
        for one in senders:
            if one.open:
                one.send(LONGEST)
                check()
        clock.advance(10)
        memory.check()
    assert all(one.served or one.closed_for for one in senders)
    assert (memory.used, memory.waiting) == (0, 0)
