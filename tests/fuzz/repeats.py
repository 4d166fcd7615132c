"""Fetch requests that repeat the last one, in odd states of the broker: the compiled answer against that in Python.

Strategy: one broker on real files. Each input takes a request that repeats another, or nearly so, and puts an odd
object in one place that the compiled function looks at: a partition that is gone or not led, an authorizer that raises,
or that removes the partition while it is asked, offsets behind the end, wrong types in what the log remembers, a socket
that is full or broken. Then `agree` asserts that both functions give the same bytes, count the same and raise the same,
and that the compiled one neither keeps nor loses a reference.
"""

from __future__ import annotations

import random
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace, TracebackType
from typing import Any
from unittest.mock import patch

from pylogd.broker.api.fast import fetch
from pylogd.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from pylogd.wire.session import ClientSession
from tests.fakes.parts import FakeConnection, RealParts
from tests.property.test_fast_fetch import mark, write

_INT64 = (1 << 63) - 1
_OFFSET_FROM_END = 29  # of the only partition of a Fetch request
_BATCHES = 12
_COUNTS = 5  # of references, at most, for an input
_SIZES = (20, 200, 20_000)
_OF_PARTITION = ("led_log", "leader_epoch", "high_watermark", "fetches", "fetched_bytes")
_OF_LOG = ("log_start_offset", "closed", "producers", "read")
_TOPICS = ("t", "t", "t", "t", "t", "transactions", "empty", "other", "gone")
_NO_NUMBERS: tuple[object, ...] = (None, "text", b"", (), [])
_ODD = (*_NO_NUMBERS, 1.5, -1, _INT64, 1 << 63, -(1 << 64))


class _Overlay:
    """An object like another, but for some of its attributes. OSError as a value is raised."""

    def __init__(self, plain: object, **odd: object) -> None:
        self.__dict__.update(plain=plain, odd=odd)

    def __getattr__(self, name: str) -> Any:
        if name not in self.odd:
            return getattr(self.plain, name)
        if self.odd[name] is OSError:
            raise OSError("odd")
        return self.odd[name]

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.odd:
            self.odd[name] = value
        else:
            setattr(self.plain, name, value)


class RepeatedFetches:
    """A broker, whose state `agree` changes for each input."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        folder = Path(self._folder.name)
        self.parts = RealParts(
            folder, log_dirs=str(folder / "logs"), log_index_interval_bytes=0, log_cleaner_enable=False
        )
        for name in ("t", "transactions", "empty", "other"):
            self.parts.create(name)
        for at in range(_BATCHES):
            self.parts.append("t", b"v" * _SIZES[at % len(_SIZES)], b"w")
        for producer in (1, 2, -1, 2):
            write(self.parts, producer)
        mark(self.parts, 2, committed=False)
        write(self.parts, -1)
        self.parts.append("other", b"v")
        self.parts.set_state("other", replicas=(1, 2), isr=(1, 2), leader=2, leader_epoch=1)

    def __enter__(self) -> RepeatedFetches:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.parts.close()
        self._folder.cleanup()

    def agree(self, number: int, module: Any) -> bool:
        """Assert that `module` answers input `number` as Python does; return whether it did so without Python."""
        chance = random.Random(number)
        broker: Any = self.parts
        connection: Any = FakeConnection()
        name = chance.choice(_TOPICS)
        known, data = self._requests(chance, name)
        in_python = partial(fetch.answer_repeated, broker)
        fetch.answer_repeated(broker, connection, known)  # which keeps it, if it may be repeated
        before, asked = connection.known_fetch, 0
        with self._odd(chance, name, before) as by_id:

            def otherwise(*arguments: Any) -> Any:
                nonlocal asked
                asked += 1
                return in_python(*arguments)

            compiled = partial(
                module.answer_repeated, broker, by_id, fetch._requests, fetch._PERMISSION, otherwise, connection, data
            )
            expected, counted = self._outcome(name, lambda _: in_python(connection, data), by_id)
            after, connection.known_fetch = connection.known_fetch, before
            objects = self._objects(name, data, before)
            kept = list(self._kept(name).values())
            references, remembered = list(map(sys.getrefcount, objects)), list(map(sys.getrefcount, kept))
            found, counts = self._outcome(name, compiled, by_id, chance)
            assert found == expected, f"input {number}: {found!r:.200} instead of {expected!r:.200}"
            assert counts == counted, f"input {number}: counted {counts} instead of {counted}"
            assert (connection.known_fetch is None) == (after is None), f"input {number}"
            connection.known_fetch = before
            for _ in range(_COUNTS):
                counted_now = list(map(sys.getrefcount, objects))
                if counted_now == references:
                    break
                references = counted_now  # a thread that has opened the log may have let go of it meanwhile
                self._outcome(name, compiled, by_id, chance)
                connection.known_fetch = before
            else:
                raise AssertionError(f"input {number}: a reference is kept or lost each time")
            now = map(sys.getrefcount, kept)  # fewer if the log has forgotten it
            assert all(map(int.__le__, now, remembered)), f"input {number}: a reference is kept"
        return not asked

    def _requests(self, chance: random.Random, name: str) -> tuple[bytes, Any]:
        """Return a request, and one that repeats it, or nearly so, or is not even bytes."""
        found = self.parts.partitions.by_name.get((name, 0))
        limit = chance.choice((0, 300, 41_000, 41_000, 1 << 20))
        wanted = FetchPartition(0, chance.choice((-1, -1, -1, 0, 0, 1)), 0, partition_max_bytes=limit)
        request = FetchRequest(
            max_bytes=1 << 20, min_bytes=chance.choice((0, 1, 1, 1, 1, 70_000)), isolation_level=chance.choice((0, 1)),
            topics=[FetchTopic("", bytes(16) if found is None else found.topic_id, [wanted])],
        )  # fmt: skip
        parts: list[Any] = ClientSession(1 << 20, "me").encode_request(request, chance.choice((13, 15, 18)))
        known = b"".join(parts)
        at = len(known) - _OFFSET_FROM_END
        end = 0 if found is None or found._log is None else found._log.log_end_offset
        offset = chance.choice((0, 1, 2, 2, 4, 4, 6, 6, end - 1, end, end + 1, _INT64, -1, -_INT64))
        data = known[:8] + chance.randbytes(4) + known[12:at] + struct.pack(">q", offset) + known[at + 8 :]
        match chance.randrange(20):
            case 0:
                changed = bytearray(data)
                changed[chance.randrange(len(data))] = chance.choice((0, 1, 127, 128, 255))
                return known, bytes(changed)
            case 1:
                return known, data[: chance.randrange(len(data))]
            case 2:
                return known, data + chance.randbytes(chance.randint(1, 9))
        return known, data

    @contextmanager
    def _odd(self, chance: random.Random, name: str, known: Any) -> Iterator[dict[Any, Any]]:
        """Put an odd object somewhere, or none; yield the partitions by id, as the compiled function is given them."""
        by_id: Any = self.parts.partitions.by_id
        found = self.parts.partitions.by_name.get((name, 0))
        with ExitStack() as stack:
            if found is not None:
                key = found.topic_id, 0
                match chance.randrange(12):
                    case 0:
                        stack.enter_context(patch.dict(by_id))
                        del by_id[key]
                    case 1:
                        stack.enter_context(patch.dict(by_id, {key: self._odd_partition(chance, found)}))
                    case 2:
                        self._make_odd_slices(chance, found, stack)
                    case 3 if known is not None:
                        odd = list(known.compiled)
                        odd[chance.choice((0, 1, 2, 3, 5, 6))] = chance.choice(_NO_NUMBERS)
                        known.compiled = chance.choice((tuple(odd), tuple(odd), known.compiled[1:], None, odd))
                    case 4 | 5:
                        authorizer = _Authorizer(chance, by_id, key)
                        stack.enter_context(patch.object(self.parts, "authorizer", authorizer))
                        stack.enter_context(patch.dict(by_id))
            yield by_id

    def _odd_partition(self, chance: random.Random, found: Any) -> _Overlay:
        """Return a partition with an odd attribute, or whose log has one."""
        odd = chance.choice((*_ODD, OSError))
        if chance.random() < 0.5:
            return _Overlay(found, **{chance.choice(_OF_PARTITION): odd})
        log = _Overlay(found._log, **{chance.choice(_OF_LOG): odd})
        return _Overlay(found, led_log=log)

    def _make_odd_slices(self, chance: random.Random, found: Any, stack: ExitStack) -> None:
        """Change what the log remembers of what was read: a number that is larger than usual, or forget all."""
        for offset in (0, 2, 4) if found.log.log_end_offset > 4 else ():
            found.log.read(offset, 41_000, end_offset=found.high_watermark)
        slices = found.log._view.slices
        stack.enter_context(patch.dict(slices))
        for offset, kept in list(slices.items()):
            changed = list(kept)
            changed[chance.randrange(2)] = chance.choice((0, -1, _INT64, 1 << 63))
            slices[offset] = tuple(changed)
        if chance.random() < 0.2:
            slices.clear()

    def _outcome(
        self, name: str, answer: Any, by_id: dict[Any, Any], chance: random.Random | None = None
    ) -> tuple[object, list[int]]:
        """Return all bytes of a reply, or the type of the exception, and what was counted. chance: for the output."""
        ours, peer = socket.socketpair()
        kept, before = dict(by_id), self._counts(name)
        with ours, peer:
            ours.setblocking(False)
            output = SimpleNamespace(socket=ours, direct_above=0, max_chunk=1 << 20)
            if chance is not None:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, chance.choice((1, 1 << 20)))
                output.direct_above, output.max_chunk = chance.choice((0, 0, 500)), chance.choice((1 << 20, 1000))
                if chance.random() < 0.2:
                    peer.shutdown(socket.SHUT_RD)
            try:
                reply: Any = answer(output)
            except Exception as error:
                reply = type(error)
            by_id.update(kept)  # what the authorizer removed
            counts = [now - then for now, then in zip(self._counts(name), before, strict=True)]
            ours.close()
            got = b"".join(iter(partial(peer.recv, 1 << 20), b""))
        if isinstance(reply, tuple):
            head, records, end, sent = reply
            whole = head + records.read() + end
            assert got == whole[: max(sent, 0)], "others than the first bytes have left"
            return whole, counts
        return got if reply is True else reply, counts

    def _counts(self, name: str) -> list[int]:
        found = self.parts.partitions.by_name.get((name, 0))
        return [fetch._requests[1], *((found.fetches, found.fetched_bytes) if found is not None else ())]

    def _objects(self, name: str, data: Any, known: Any) -> list[object]:
        """Return the objects that an answer is made of, as far as they are there before it."""
        found: Any = self.parts.partitions.by_name.get((name, 0))
        objects = [
            data,
            known,
            self.parts,
            *(() if known is None else (known.offset_in, known.response_head, known.key)),
        ]
        return [*objects, found, found._log] if found is not None else objects

    def _kept(self, name: str) -> dict[int, Any]:
        """Return what the log remembers of what was read."""
        found: Any = self.parts.partitions.by_name.get((name, 0))
        return found._log._view.slices if found is not None else {}


class _Authorizer:
    """Allows, denies, raises, or removes the partition before it allows."""

    version = 1

    def __init__(self, chance: random.Random, by_id: dict[Any, Any], key: object) -> None:
        self._way, self._by_id, self._key = chance.randrange(6), by_id, key

    def authorize(self, *_: object) -> Any:
        match self._way:
            case 0:
                return False
            case 1:
                raise OSError("odd")
            case 2:
                self._by_id.pop(self._key, None)
            case 3:
                return _Undecided()
        return self._way


class _Undecided:
    """Neither true nor false."""

    def __bool__(self) -> bool:
        raise ZeroDivisionError
