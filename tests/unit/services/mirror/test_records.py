"""What the mirror keeps at a target is read as it was written, and other records are left alone."""

from __future__ import annotations

import pytest

from pylogd.services.mirror import records
from pylogd.services.mirror.offset_map import Run
from pylogd.services.mirror.target import Checkpoint, SourcePartition

PARTITION = SourcePartition("a cluster", "events", 3, "logs.events")
CHECKPOINT = Checkpoint(bytes(range(16)), 42, 4, 50, 1_700_000_000_000)


def test_what_is_written_is_read() -> None:
    assert records.parse_checkpoint(*records.checkpoint_record(PARTITION, CHECKPOINT)) == (PARTITION, CHECKPOINT)
    origin = records.Origin("logs.events", "a", "events", ("a", "b"), ("retention.ms",), (("TOPIC", "x"),))
    assert records.parse_origin(*records.origin_record(origin)) == origin
    runs = [Run(1, 2, 3), Run(9, 9, 1)]
    found = records.parse_runs(*records.runs_record(PARTITION, CHECKPOINT.topic_id, runs))
    assert found == (PARTITION, CHECKPOINT.topic_id, runs)


@pytest.mark.parametrize("parse", [records.parse_checkpoint, records.parse_origin, records.parse_runs])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None), (b"", b""), (b"{", b"1"), (b"[]", b"{}"), (b'["checkpoint","a","b",1,"c"]', None),
        (b'["checkpoint","a","b",1,"c"]', b"[]"), (b'["origin","a","b","c"]', b"{}"),
        (b'["runs","a","b",1,"c"]', b'{"topic_id":"zz","runs":[]}'),
    ],
)  # fmt: skip
def test_other_records_are_ignored(parse: object, key: bytes | None, value: bytes | None) -> None:
    assert callable(parse) and parse(key, value) is None
