"""`verify-log` finds damage and says where; `dump-log` reads every kind of file."""

from __future__ import annotations

import os

import pytest

from pylogd.broker.log.config import LogConfig
from pylogd.broker.log.dump import dump_file
from pylogd.broker.log.validator import AppendOrigin
from pylogd.broker.log.verify import Finding, Severity, verify_log_dir
from tests.fakes.storage import (
    DATA,
    START_MS,
    MemoryStorage,
    append,
    batch,
    contents,
    flip_byte,
    is_bad,
    names,
    overwrite,
    truncate,
    with_header,
)

PARTITION = f"{DATA}/t-0"
SECOND = f"{PARTITION}/{4:020d}"


def filled() -> MemoryStorage:
    """Return a storage after a clean stop, with a log of five segments of four batches and an idempotent producer."""
    storage = MemoryStorage(LogConfig(segment_bytes=400, index_interval_bytes=100))
    log = storage.create()
    for at in range(20):
        append(
            log, b"%03d" % at + b"x" * 20, timestamp=START_MS + at, epoch=at // 8,
            producer_id=5, producer_epoch=1, base_sequence=at,
        )  # fmt: skip
    storage.manager.close()
    return storage


def found(storage: MemoryStorage) -> list[Finding]:
    """Return the findings of the check."""
    return [finding for finding in verify_log_dir(DATA, records=True, fs=storage.fs) if is_bad(finding)]


def test_a_valid_log_has_no_findings() -> None:
    storage = filled()
    assert len(names(storage.fs, ".log")) == 5
    assert found(storage) == []
    assert list(verify_log_dir(PARTITION, fs=storage.fs)) == []


def test_a_bad_crc_is_found_with_its_position() -> None:
    storage = filled()
    flip_byte(storage.fs, f"{SECOND}.log", 92 + 50)
    (finding,) = found(storage)
    assert (finding.path, finding.position, finding.severity) == (f"{SECOND}.log", 92, Severity.ERROR)
    assert "CRC" in finding.message
    assert str(finding).startswith(f"error: {SECOND}.log: byte 92: ")


# the leader epoch between them is not covered by the CRC
@pytest.mark.parametrize("position", [*range(12), *range(16, 92)])
def test_any_damage_to_a_batch_is_found(position: int) -> None:
    storage = filled()
    flip_byte(storage.fs, f"{SECOND}.log", 92 + position)
    assert any(finding.path.startswith(SECOND) for finding in found(storage))


def test_a_truncated_log_file_is_found() -> None:
    storage = filled()
    truncate(storage.fs, f"{SECOND}.log", 200)
    first = found(storage)[0]
    assert (first.path, first.position) == (f"{SECOND}.log", 184)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_every_byte_of_the_indexes_counts(suffix: str) -> None:
    storage = filled()
    path = f"{SECOND}.{suffix}"
    good = contents(storage.fs, path)
    assert good
    for position in range(len(good)):
        flip_byte(storage.fs, path, position)
        assert [finding.path for finding in found(storage)][:1] == [path]
        overwrite(storage.fs, path, good)
    for harmed in (good[:-1], good[: -len(good) // 2] + b"\0", good + good):
        overwrite(storage.fs, path, harmed)
        assert found(storage)[0].path == path
    storage.fs.unlink(path)
    assert found(storage)[0].message == "the index is missing"


def test_an_empty_segment_needs_no_indexes() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"value")
    log.deletable_offset = 1
    log.delete_records_before(1)
    storage.pass_time(60_000)
    storage.manager.tick()
    storage.lose_power()  # the log start offset is known, the record is not
    assert names(storage.fs, ".log") == [f"{0:020d}.log", f"{1:020d}.log"] and not names(storage.fs, ".index")
    assert found(storage) == []


def test_gaps_and_overlaps_are_found() -> None:
    storage = filled()
    data = contents(storage.fs, f"{SECOND}.log")
    for suffix in ("log", "index", "timeindex", "snapshot"):
        storage.fs.unlink(f"{SECOND}.{suffix}")
    (gap,) = found(storage)
    assert "no records from offset 4 to 7" in gap.message
    overwrite(storage.fs, f"{PARTITION}/{9:020d}.log", data)
    assert any("overlap" in finding.message for finding in found(storage))


def test_a_gap_before_the_log_start_offset_is_none() -> None:
    storage = MemoryStorage()
    log = storage.create()
    append(log, b"0")
    log.flush()
    append(log, b"1")
    log.delete_records_before(2)
    storage.manager.checkpoint()
    storage.lose_power()  # takes record 1
    log = storage.manager.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert append(log, b"2").base_offset == 2
    storage.check()
    storage.manager.close()
    starts = f"{DATA}/log-start-offset-checkpoint"
    storage.fs.files[starts].data = bytearray(b"0\n0\n")
    assert [finding.severity for finding in verify_log_dir(DATA, fs=storage.fs)] == [Severity.WARNING]


def test_checkpoints_that_contradict_the_log_are_found() -> None:
    storage = filled()
    overwrite(storage.fs, f"{DATA}/recovery-point-offset-checkpoint", b"0\n1\nt 0 21\n")
    overwrite(storage.fs, f"{DATA}/log-start-offset-checkpoint", b"junk")
    overwrite(storage.fs, f"{DATA}/meta.properties", b"junk")
    overwrite(storage.fs, f"{PARTITION}/leader-epoch-checkpoint", b"0\n1\n9 99\n")
    overwrite(storage.fs, f"{PARTITION}/partition.metadata", b"junk")
    flip_byte(storage.fs, f"{PARTITION}/{20:020d}.snapshot", 12)
    assert {os.path.basename(finding.path) for finding in found(storage)} == {
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        "leader-epoch-checkpoint",
        "partition.metadata",
        f"{20:020d}.snapshot",
    }
    overwrite(storage.fs, f"{PARTITION}/leader-epoch-checkpoint", b"junk")
    assert f"{PARTITION}/leader-epoch-checkpoint" in {finding.path for finding in found(storage)}


def test_unknown_files_are_reported() -> None:
    storage = filled()
    for path in (f"{DATA}/notes", f"{PARTITION}/notes", f"{PARTITION}/{3:020d}.index"):
        overwrite(storage.fs, path, b"")
    overwrite(storage.fs, f"{PARTITION}/{0:020d}.log.deleted", b"")
    overwrite(storage.fs, f"{PARTITION}/{0:020d}.log.orphaned", b"")
    storage.fs.mkdir(f"{DATA}/u-0.0123-delete")
    assert len(found(storage)) == 4
    assert len(list(verify_log_dir(DATA, fs=storage.fs))) == 6


def test_a_stray_log_is_named_and_checked() -> None:
    storage = filled()
    storage.start()
    path = storage.manager.keep_aside("t", 0)
    assert path is not None
    storage.manager.close()
    (finding,) = verify_log_dir(DATA, fs=storage.fs)
    assert (finding.path, finding.severity) == (path, Severity.WARNING)
    flip_byte(storage.fs, f"{path}/{20:020d}.snapshot", 12)
    assert [finding.severity for finding in verify_log_dir(DATA, fs=storage.fs)] == [Severity.WARNING, Severity.ERROR]


def test_records_that_can_not_be_decoded_are_found() -> None:
    storage = filled()
    storage.start()
    log = storage.manager.logs["t", 0]
    bad = with_header(batch(b"v"), attributes=1, base_offset=log.log_end_offset, leader_epoch=2)
    log.append(bad, leader_epoch=2, origin=AppendOrigin.REPLICATION)
    log.seal()
    (finding,) = found(storage)
    assert finding.severity is Severity.ERROR
    assert list(verify_log_dir(DATA, fs=storage.fs)) == []
    storage.manager.close()


def test_an_epoch_that_goes_back_is_found() -> None:
    storage = filled()
    flip_byte(storage.fs, f"{PARTITION}/{8:020d}.log", 12)
    assert any("leader epoch" in finding.message for finding in found(storage))


def dump(storage: MemoryStorage, name: str, *, records: bool = False) -> list[str]:
    """Return the lines of the dump of a file."""
    return list(dump_file(f"{PARTITION}/{name}", records=records, fs=storage.fs))


def test_a_log_is_dumped() -> None:
    storage = filled()
    lines = dump(storage, f"{4:020d}.log", records=True)
    assert lines[0].startswith("position 0, size 92, offsets 4 to 4, records 1, timestamps ")
    assert "producer 5 epoch 1 sequence 4" in lines[0]
    assert lines[1] == f"  offset 4, timestamp {START_MS + 4}, key b'k', value b'004xxxxxxxxxxxxxxxxxxxx'"
    assert lines[-1] == "4 batches, 368 bytes"
    assert len(lines) == 9
    flip_byte(storage.fs, f"{SECOND}.log", 80)
    assert "WRONG" in dump(storage, f"{4:020d}.log")[0]
    truncate(storage.fs, f"{SECOND}.log", 100)
    assert dump(storage, f"{4:020d}.log")[-1].startswith("no valid batch at byte 92 of 100")


def test_the_dump_says_if_records_can_not_be_decoded() -> None:
    storage = filled()
    overwrite(storage.fs, f"{SECOND}.log", with_header(batch(b"v"), attributes=0x31))
    lines = dump(storage, f"{4:020d}.log", records=True)
    assert "compression gzip" in lines[0]
    assert "transactional, control" in lines[0]
    assert "can't be decoded" in lines[1]


def test_indexes_snapshots_and_text_files_are_dumped() -> None:
    storage = filled()
    assert dump(storage, f"{4:020d}.index") == ["offset 6, position 184"]
    assert dump(storage, f"{4:020d}.timeindex") == [
        f"timestamp {START_MS + 6}, offset 6",
        f"timestamp {START_MS + 7}, offset 7",
    ]
    assert dump(storage, f"{20:020d}.snapshot")[0] == "producers before offset 20: 1"
    assert dump(storage, f"{20:020d}.snapshot")[-1].startswith("producer 5, epoch 1, last sequence 19, last offset 19")
    assert dump(storage, "leader-epoch-checkpoint") == ["0", "3", "0 0", "1 8", "2 16"]
    assert dump(storage, "partition.metadata")[0] == "version: 0"
    for name in ("meta.properties", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        assert list(dump_file(f"{DATA}/{name}", fs=storage.fs))
    overwrite(storage.fs, f"{SECOND}.index", b"123")
    overwrite(storage.fs, f"{SECOND}.snapshot", b"123")
    assert dump(storage, f"{4:020d}.index") == ["3 bytes follow the last complete entry"]
    assert dump(storage, f"{4:020d}.snapshot")[0].startswith("invalid snapshot")
    with pytest.raises(ValueError, match="the name must end with one of"):
        dump(storage, "notes.txt")
