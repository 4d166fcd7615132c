"""A recovery that scans a whole log knows the producers that a replay of the log's batches finds."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.log.errors import InvalidAppend
from pylogd.broker.log.markers import encode_marker
from pylogd.broker.log.producers import Producers
from pylogd.broker.log.snapshots import restore_producers
from pylogd.broker.log.transactions import VERIFICATION_OFF, TransactionTerms
from pylogd.broker.log.validator import AppendOrigin
from pylogd.wire.records import TRANSACTIONAL
from tests.fakes.storage import START_MS, MemoryStorage, batch, names, truncate

PLAIN, IDEMPOTENT, TRANSACTION, COMMIT, ABORT = range(5)
#: What is appended, by which producer, of which epoch.
APPENDS = st.lists(st.tuples(st.sampled_from(range(5)), st.integers(1, 3), st.integers(0, 1)), max_size=25)


def fill(storage: MemoryStorage, appends: list[tuple[int, int, int]]) -> None:
    """Append what the log accepts of it."""
    log = storage.create()
    for kind, producer, epoch in appends:
        with contextlib.suppress(InvalidAppend):
            if kind in (COMMIT, ABORT):
                marker = encode_marker(producer, epoch, START_MS, committed=kind == COMMIT, coordinator_epoch=1)
                log.append(marker, leader_epoch=0, origin=AppendOrigin.COORDINATOR, terms=TransactionTerms(version=1))
                continue
            sequence = max(log.producers.next_sequence(producer, epoch), 0)
            options: dict[str, Any] = {}
            if kind != PLAIN:
                options = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
            if kind == TRANSACTION:
                options["attributes"] = TRANSACTIONAL
            log.append(batch(b"value", **options), leader_epoch=0, terms=VERIFICATION_OFF)


@given(appends=APPENDS, segment_bytes=st.sampled_from([200, 400, 1 << 20]), cut=st.integers(0, 150))
def test_the_scan_and_the_replay_agree(appends: list[tuple[int, int, int]], segment_bytes: int, cut: int) -> None:
    storage = MemoryStorage(segment_bytes=segment_bytes)
    fill(storage, appends)
    last = storage.manager.logs["t", 0].active
    truncate(storage.fs, last.path, max(last.size - cut, 0))
    assert not names(storage.fs, ".snapshot")
    log = storage.kill()
    replayed = Producers()
    restore_producers(storage.fs, log.directory, log.segments, log.log_end_offset, replayed)
    assert log.producers.to_snapshot() == replayed.to_snapshot()
    assert log.producers.unstable.stable_end(1 << 40) == replayed.unstable.stable_end(1 << 40)
    storage.check()
