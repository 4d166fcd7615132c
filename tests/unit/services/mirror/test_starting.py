"""Where copying starts, by what the checkpoint says and what became of the source's log."""

from __future__ import annotations

from pylogd.client.core.model import OffsetAndMetadata
from pylogd.services.mirror.starting import LogRange, start_of
from pylogd.services.mirror.target import Checkpoint
from pylogd.wire.values import ZERO_UUID

ID, OTHER = bytes(15) + b"1", bytes(15) + b"2"
LOG = LogRange(10, 100)


def checkpoint(offset: int, epoch: int = 4, topic_id: bytes = ID) -> Checkpoint:
    return Checkpoint(topic_id, offset, epoch, 500, 0)


def test_a_new_topic_starts_where_the_route_says() -> None:
    assert start_of(ID, LOG, None).offset == 10
    assert start_of(ID, LOG, None, new="latest").offset == 100
    assert start_of(ID, LOG, None).warning is None


def test_a_known_one_goes_on_at_its_checkpoint() -> None:
    found = start_of(ID, LOG, checkpoint(42), new="latest")
    assert (found.offset, found.epoch, found.warning) == (42, 4, None)


def test_a_recreated_topic_is_copied_from_its_first_record() -> None:
    found = start_of(OTHER, LOG, checkpoint(42))
    assert (found.offset, found.epoch) == (10, -1)
    assert found.warning is not None and "created again" in found.warning
    assert start_of(ZERO_UUID, LOG, checkpoint(42)).offset == 42  # the broker is too old to know ids


def test_records_that_were_deleted_too_early_are_counted() -> None:
    found = start_of(ID, LOG, checkpoint(3))
    assert (found.offset, found.lost) == (10, 7)
    assert found.warning is not None and "offsets 3 to 9" in found.warning


def test_a_truncated_log_is_gone_on_with_where_it_differs() -> None:
    found = start_of(ID, LOG, checkpoint(42), OffsetAndMetadata(30, leader_epoch=3))
    assert (found.offset, found.epoch) == (30, 3)
    assert found.warning is not None and "truncated" in found.warning
    assert start_of(ID, LOG, checkpoint(42), OffsetAndMetadata(-1)).offset == 42
    assert start_of(ID, LogRange(0, 20), checkpoint(42), OffsetAndMetadata(-1)).offset == 20
    assert start_of(ID, LOG, checkpoint(42), OffsetAndMetadata(50)).warning is None


def test_a_checkpoint_behind_the_end_is_left_to_the_leader_if_it_has_an_epoch() -> None:
    assert start_of(ID, LOG, checkpoint(150)).offset == 150
    found = start_of(ID, LOG, checkpoint(150, epoch=-1))
    assert found.offset == 100 and found.warning is not None
