"""A read_committed reader gets exactly the committed records, in order, whatever happens to the log.

The machine appends batches inside and outside of transactions, ends these, moves the high watermark, truncates, deletes
records, compacts, flushes, stops, is killed and loses power. The model is a list of what was appended; a reader, as
clients read, is compared with it after each step.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pylogd.broker.log.log import Log
from pylogd.broker.log.markers import encode_marker, read_marker
from pylogd.broker.log.producers import SnapshotEntry
from pylogd.broker.log.transactions import VERIFICATION_OFF, AbortedTransaction, TransactionTerms
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.records import TRANSACTIONAL, decode_batch, encode_batch, iter_batches
from tests.fakes.compaction import CompactedStorage

PRODUCERS = (1, 2, 3)
KEEP_TOMBSTONES_MS = 500


class Entry(NamedTuple):
    """A batch, or a marker: then there are no values."""

    base: int
    last: int
    producer: int  # -1 outside of transactions
    values: tuple[bytes, ...]
    committed: bool | None = None  # of a marker


def stable_end(log: Log, high_watermark: int) -> int:
    """Return the last stable offset."""
    return max(log.producers.unstable.stable_end(high_watermark), min(log.log_start_offset, high_watermark))


def read_committed(log: Log, start: int, end: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """Return offset and value of the records from `start` up to the last stable offset `end`, as clients do."""
    found: list[tuple[int, bytes]] = []
    offset = start
    while (records := log.read(offset, max_bytes, end_offset=end, allow_cold=True)) is not None:
        named = log.aborted_in(offset, records, end, allow_cold=True)
        assert [one.last_offset for one in named] == sorted(one.last_offset for one in named)
        pending: list[AbortedTransaction] = sorted(named, key=lambda one: one.first_offset)
        aborted: set[int] = set()
        for header, data in iter_batches(records.read()):
            while pending and pending[0].first_offset <= header.last_offset:
                aborted.add(pending.pop(0).producer_id)
            offset = header.next_offset
            if header.is_control:
                marker = read_marker(header, data)
                if marker is not None and not marker.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                found += [
                    (record.offset, record.value or b"") for record in decode_batch(data) if record.offset >= start
                ]
    return found


class TransactionsMachine(RuleBasedStateMachine):
    """`entries`: what the log should have. `floor`: the least that the last stable offset must be from now on."""

    storage: CompactedStorage

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.start = self.end = self.high_watermark = self.floor = 0
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.next = dict.fromkeys(PRODUCERS, 0)
        self.keys = 0
        self.exact = True  # whether the log knows which markers are not replicated: until it is loaded or truncated

    @property
    def log(self) -> Log:
        return self.storage.manager.logs["t", 0]

    @initialize(segment_bytes=st.sampled_from([350, 900]), interval=st.sampled_from([0, 200]))
    def build(self, segment_bytes: int, interval: int) -> None:
        self.storage = CompactedStorage()
        self.storage.create()
        self.storage.configure(
            self.log, segment_bytes=segment_bytes, index_interval_bytes=interval,
            delete_retention_ms=KEEP_TOMBSTONES_MS, producer_id_expiration_ms=1 << 40,
        )  # fmt: skip

    # -- appends

    def rows(self, count: int) -> tuple[tuple[bytes, ...], list[tuple[bytes, bytes, int, tuple[()]]]]:
        """Return records with keys of their own, so that compaction keeps all that are committed."""
        values = tuple(b"%d" % (self.keys + at) for at in range(count))
        self.keys += count
        return values, [(b"k" + value, value, self.storage.now_ms, ()) for value in values]

    @rule(count=st.integers(1, 3))
    def append_plain(self, count: int) -> None:
        values, rows = self.rows(count)
        result = self.log.append(encode_batch(rows), leader_epoch=0)
        self.note(Entry(result.base_offset, result.last_offset, -1, values))

    @rule(producer=st.sampled_from(PRODUCERS), count=st.integers(1, 3), replicated=st.booleans())
    def append_in_transaction(self, producer: int, count: int, replicated: bool = False) -> None:
        values, rows = self.rows(count)
        data = encode_batch(
            rows, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=self.epochs[producer],
            base_sequence=self.next[producer],
        )  # fmt: skip
        result = self.log.append(data, leader_epoch=0, terms=VERIFICATION_OFF)
        assert not result.duplicate
        self.next[producer] += count
        self.note(Entry(result.base_offset, result.last_offset, producer, values))
        if replicated:
            self.high_watermark = self.end
            self.log.deletable_offset = self.high_watermark

    @rule(producer=st.sampled_from(PRODUCERS), committed=st.booleans(), bump=st.booleans())
    def end_transaction(self, producer: int, committed: bool, bump: bool) -> None:
        if bump:
            self.epochs[producer] += 1
            self.next[producer] = 0
        data = encode_marker(
            producer, self.epochs[producer], self.storage.now_ms, committed=committed, coordinator_epoch=1
        )
        result = self.log.append(
            data, leader_epoch=0, origin=AppendOrigin.COORDINATOR, terms=TransactionTerms(version=2 if bump else 1)
        )
        if producer not in self.log.producers.by_id or not bump:
            self.next[producer] = max(self.next_sequence(producer), 0)
        self.note(Entry(result.base_offset, result.last_offset, producer, (), committed))

    def next_sequence(self, producer: int) -> int:
        return self.log.producers.next_sequence(producer, self.epochs[producer])

    def note(self, entry: Entry) -> None:
        assert entry.base == self.end
        self.entries.append(entry)
        self.end = entry.last + 1

    @rule(
        batches=st.lists(st.sampled_from([*PRODUCERS, -1]), min_size=1, max_size=8),
        ends=st.lists(st.tuples(st.sampled_from(PRODUCERS), st.booleans(), st.booleans()), min_size=1, max_size=3),
    )
    def mix_transactions(self, batches: list[int], ends: list[tuple[int, bool, bool]]) -> None:
        """Append batches of several producers, some of whose transactions end then and are replicated."""
        for producer in batches:
            if producer < 0:
                self.append_plain(1)
            else:
                self.append_in_transaction(producer, 1)
        for producer, committed, bump in ends:
            self.end_transaction(producer, committed, bump)
        self.high_watermark = self.end
        self.log.deletable_offset = self.high_watermark

    @rule(committed=st.booleans())
    def end_all(self, committed: bool) -> None:
        for producer in PRODUCERS:
            self.end_transaction(producer, committed, False)
        self.high_watermark = self.end
        self.log.deletable_offset = self.high_watermark

    # -- what else happens

    @rule(data=st.data())
    def replicate(self, data: st.DataObject) -> None:
        ends = [entry.last + 1 for entry in self.entries if entry.last >= self.high_watermark]
        if ends:
            self.high_watermark = data.draw(st.sampled_from(ends))
            self.log.deletable_offset = self.high_watermark

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.high_watermark, self.end))
        self.end = self.storage.manager.truncate_to("t", 0, offset)
        self.lose(self.end)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.start = data.draw(st.integers(self.start, max(self.high_watermark, self.start)))
        self.log.delete_records_before(self.start)

    @precondition(lambda self: len(self.entries) > 30)
    @rule(skipped=st.integers(0, 5))
    def begin_anew(self, skipped: int) -> None:
        """Restart behind the end, as a follower does whose leader has deleted what it lacks."""
        self.start = self.end = self.high_watermark = self.floor = self.end + skipped
        self.storage.manager.begin_at("t", 0, self.end)
        self.entries = []
        self.log.deletable_offset = self.high_watermark
        self.resume()

    @rule(milliseconds=st.integers(0, 2 * KEEP_TOMBSTONES_MS))
    def tick(self, milliseconds: int) -> None:
        self.storage.pass_time(milliseconds)
        self.storage.manager.tick()

    @rule()
    def compact(self) -> None:
        self.storage.clean()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.storage.manager.checkpoint()

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        before = self.producers()
        if clean:
            self.storage.restart()
        else:
            self.storage.manager.checkpoint()
            self.storage.kill()
        self.exact, self.floor = (
            False,
            0,
        )  # which markers were not replicated is not known any more; they may be truncated
        self.log.deletable_offset = self.high_watermark
        assert self.producers() == before

    @rule()
    def lose_power(self) -> None:
        """Lose power when everything was flushed: then nothing may be missing."""
        self.log.flush()
        self.storage.manager.checkpoint()
        before = self.producers()
        self.storage.lose_power()
        self.exact, self.floor = False, 0
        if ("t", 0) not in self.storage.manager.logs:
            assert not self.entries
            self.storage.create()
            self.begin_anew(0)
        self.log.deletable_offset = self.high_watermark
        assert self.producers() == before

    @rule(torn=st.sampled_from([0, 50]))
    def lose_power_any_time(self, torn: int) -> None:
        """Lose power when not everything was flushed: the log has what was, and ends where it can be read."""
        flushed = self.log.recovery_point if self.log.names_synced else 0
        self.storage.lose_power(torn)
        if ("t", 0) not in self.storage.manager.logs:
            assert not flushed
            assert not self.storage.manager.offline
            self.storage.create()
        start, end = self.ends()
        assert flushed <= end <= self.end
        self.start, self.end = start, end
        self.lose(end)
        self.log.deletable_offset = self.high_watermark
        self.storage.kill()
        assert self.ends() == (start, end)
        self.log.deletable_offset = self.high_watermark

    def ends(self) -> tuple[int, int]:
        """Return where the log starts and ends, and check that it can be read up to there."""
        offset = self.log.log_start_offset
        while (records := self.log.read(offset, 1 << 20, allow_cold=True, empty=True)) is not None:
            for header, _ in iter_batches(records.read()):
                offset = header.next_offset
        assert offset == self.log.log_end_offset
        return self.log.log_start_offset, offset

    def producers(self) -> list[tuple[int, int, int, int]]:
        """Return what has to survive of each producer: epoch, sequence, and the start of its transaction."""

        def kept(entry: SnapshotEntry) -> tuple[int, int, int, int]:
            return entry.producer_id, entry.epoch, entry.last_sequence, entry.transaction_first_offset

        return sorted(map(kept, self.log.producers.entries()))

    def lose(self, end: int) -> None:
        self.entries = [entry for entry in self.entries if entry.last < end]
        self.high_watermark = min(self.high_watermark, end)
        self.exact, self.floor = False, 0
        self.resume()

    def resume(self) -> None:
        """Have the producers go on where the log is."""
        for producer in PRODUCERS:
            known = self.log.producers.by_id.get(producer)
            if known is not None:
                self.epochs[producer], self.next[producer] = known.epoch, max(known.next_sequence, 0)

    # -- what must be true

    def expected(self, end: int) -> list[tuple[int, bytes]]:
        """Return offset and value of what is committed, from the log's start to `end`."""
        outcome: dict[int, bool | None] = {}  # of the present transaction of each producer, read backwards
        found: list[tuple[int, bytes]] = []
        for entry in reversed(self.entries):
            if entry.committed is not None:
                outcome[entry.producer] = entry.committed
            elif entry.last < end and (entry.producer < 0 or outcome.get(entry.producer)):
                found += reversed([(entry.base + at, value) for at, value in enumerate(entry.values)])
        return [one for one in reversed(found) if one[0] >= self.start]

    def first_unstable(self) -> int:
        """Return the first offset of a transaction that is open, or whose marker is not replicated."""
        first: dict[int, int] = {}
        unstable = self.high_watermark
        for entry in self.entries:
            if entry.committed is not None:
                begun = first.pop(entry.producer, None)
                if begun is not None and entry.base >= self.high_watermark:
                    unstable = min(unstable, begun)
            elif entry.producer >= 0:
                first.setdefault(entry.producer, entry.base)
        return min([unstable, *first.values()])

    @precondition(lambda self: hasattr(self, "storage"))
    @invariant()
    def readers_get_what_is_committed(self) -> None:
        end = stable_end(self.log, self.high_watermark)
        assert end >= self.floor
        self.floor = end
        least = max(self.first_unstable(), min(self.start, self.high_watermark))
        assert end == least if self.exact else least <= end <= self.high_watermark
        for max_bytes in (1, 300, 1 << 20):
            assert read_committed(self.log, self.start, end, max_bytes) == self.expected(end)

    def teardown(self) -> None:
        if hasattr(self, "storage"):
            self.storage.check()


TestTransactions = TransactionsMachine.TestCase
TestTransactions.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
