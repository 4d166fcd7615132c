"""`verify-log` finds damage and says where; `dump-log` reads every kind of file."""

from __future__ import annotations

import os

import pytest

from pylogd.log.config import LogConfig
from pylogd.log.dump import dump_file
from pylogd.log.validator import AppendOrigin
from pylogd.log.verify import Finding, Severity, verify_log_dir
from tests.fakes.storage import (
    DATA,
    START_MS,
    House,
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


def filled() -> House:
    """A house stopped in order, whose one log has five segments of four batches and an idempotent producer's state."""
    house = House(LogConfig(segment_bytes=400, index_interval_bytes=100))
    log = house.create()
    for at in range(20):
        append(
            log, b"%03d" % at + b"x" * 20, timestamp=START_MS + at, epoch=at // 8,
            producer_id=5, producer_epoch=1, base_sequence=at,
        )  # fmt: skip
    house.manager.close()
    return house


def found(house: House) -> list[Finding]:
    """Return the findings of the check."""
    return [finding for finding in verify_log_dir(DATA, records=True, fs=house.fs) if is_bad(finding)]


def test_a_valid_log_has_no_findings() -> None:
    house = filled()
    assert len(names(house.fs, ".log")) == 5
    assert found(house) == []
    assert list(verify_log_dir(PARTITION, fs=house.fs)) == []


def test_a_bad_crc_is_found_with_its_position() -> None:
    house = filled()
    flip_byte(house.fs, f"{SECOND}.log", 92 + 50)
    (finding,) = found(house)
    assert (finding.path, finding.position, finding.severity) == (f"{SECOND}.log", 92, Severity.ERROR)
    assert "CRC" in finding.message
    assert str(finding).startswith(f"error: {SECOND}.log: byte 92: ")


@pytest.mark.parametrize("position", [*range(12), *range(16, 92)])  # the leader epoch between them has no CRC
def test_any_damage_to_a_batch_is_found(position: int) -> None:
    house = filled()
    flip_byte(house.fs, f"{SECOND}.log", 92 + position)
    assert any(finding.path.startswith(SECOND) for finding in found(house))


def test_a_truncated_log_file_is_found() -> None:
    house = filled()
    truncate(house.fs, f"{SECOND}.log", 200)
    first = found(house)[0]
    assert (first.path, first.position) == (f"{SECOND}.log", 184)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_every_byte_of_the_indexes_counts(suffix: str) -> None:
    house = filled()
    path = f"{SECOND}.{suffix}"
    good = contents(house.fs, path)
    assert good
    for position in range(len(good)):
        flip_byte(house.fs, path, position)
        assert [finding.path for finding in found(house)][:1] == [path]
        overwrite(house.fs, path, good)
    for harmed in (good[:-1], good[: -len(good) // 2] + b"\0", good + good):
        overwrite(house.fs, path, harmed)
        assert found(house)[0].path == path
    house.fs.unlink(path)
    assert found(house)[0].message == "the index is missing"


def test_gaps_and_overlaps_are_found() -> None:
    house = filled()
    data = contents(house.fs, f"{SECOND}.log")
    for suffix in ("log", "index", "timeindex", "snapshot"):
        house.fs.unlink(f"{SECOND}.{suffix}")
    (gap,) = found(house)
    assert "no records from offset 4 to 7" in gap.message
    overwrite(house.fs, f"{PARTITION}/{9:020d}.log", data)
    assert any("overlap" in finding.message for finding in found(house))


def test_checkpoints_that_contradict_the_log_are_found() -> None:
    house = filled()
    overwrite(house.fs, f"{DATA}/recovery-point-offset-checkpoint", b"0\n1\nt 0 21\n")
    overwrite(house.fs, f"{DATA}/log-start-offset-checkpoint", b"junk")
    overwrite(house.fs, f"{DATA}/meta.properties", b"junk")
    overwrite(house.fs, f"{PARTITION}/leader-epoch-checkpoint", b"0\n1\n9 99\n")
    overwrite(house.fs, f"{PARTITION}/partition.metadata", b"junk")
    flip_byte(house.fs, f"{PARTITION}/{20:020d}.snapshot", 12)
    assert {os.path.basename(finding.path) for finding in found(house)} == {
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "meta.properties",
        "leader-epoch-checkpoint",
        "partition.metadata",
        f"{20:020d}.snapshot",
    }
    overwrite(house.fs, f"{PARTITION}/leader-epoch-checkpoint", b"junk")
    assert f"{PARTITION}/leader-epoch-checkpoint" in {finding.path for finding in found(house)}


def test_unknown_files_are_reported() -> None:
    house = filled()
    for path in (f"{DATA}/notes", f"{PARTITION}/notes", f"{PARTITION}/{3:020d}.index"):
        overwrite(house.fs, path, b"")
    overwrite(house.fs, f"{PARTITION}/{0:020d}.log.deleted", b"")
    overwrite(house.fs, f"{PARTITION}/{0:020d}.log.orphaned", b"")
    house.fs.mkdir(f"{DATA}/u-0.0123-delete")
    assert len(found(house)) == 4
    assert len(list(verify_log_dir(DATA, fs=house.fs))) == 6


def test_a_stray_log_is_named_and_checked() -> None:
    house = filled()
    house.start()
    path = house.manager.keep_aside("t", 0)
    assert path is not None
    house.manager.close()
    (finding,) = verify_log_dir(DATA, fs=house.fs)
    assert (finding.path, finding.severity) == (path, Severity.WARNING)
    flip_byte(house.fs, f"{path}/{20:020d}.snapshot", 12)
    assert [finding.severity for finding in verify_log_dir(DATA, fs=house.fs)] == [Severity.WARNING, Severity.ERROR]


def test_records_that_can_not_be_decoded_are_found() -> None:
    house = filled()
    house.start()
    log = house.manager.logs["t", 0]
    bad = with_header(batch(b"v"), attributes=1, base_offset=log.log_end_offset, leader_epoch=2)
    log.append(bad, leader_epoch=2, origin=AppendOrigin.REPLICATION)
    log.seal()
    (finding,) = found(house)
    assert finding.severity is Severity.ERROR
    assert list(verify_log_dir(DATA, fs=house.fs)) == []
    house.manager.close()


def test_an_epoch_that_goes_back_is_found() -> None:
    house = filled()
    flip_byte(house.fs, f"{PARTITION}/{8:020d}.log", 12)
    assert any("leader epoch" in finding.message for finding in found(house))


def dump(house: House, name: str, *, records: bool = False) -> list[str]:
    """Return the lines of the dump of a file."""
    return list(dump_file(f"{PARTITION}/{name}", records=records, fs=house.fs))


def test_a_log_is_dumped() -> None:
    house = filled()
    lines = dump(house, f"{4:020d}.log", records=True)
    assert lines[0].startswith("position 0, size 92, offsets 4 to 4, records 1, timestamps ")
    assert "producer 5 epoch 1 sequence 4" in lines[0]
    assert lines[1] == f"  offset 4, timestamp {START_MS + 4}, key b'k', value b'004xxxxxxxxxxxxxxxxxxxx'"
    assert lines[-1] == "4 batches, 368 bytes"
    assert len(lines) == 9
    flip_byte(house.fs, f"{SECOND}.log", 80)
    assert "WRONG" in dump(house, f"{4:020d}.log")[0]
    truncate(house.fs, f"{SECOND}.log", 100)
    assert dump(house, f"{4:020d}.log")[-1].startswith("no valid batch at byte 92 of 100")


def test_the_dump_says_if_records_can_not_be_decoded() -> None:
    house = filled()
    overwrite(house.fs, f"{SECOND}.log", with_header(batch(b"v"), attributes=0x31))
    lines = dump(house, f"{4:020d}.log", records=True)
    assert "compression gzip" in lines[0]
    assert "transactional, control" in lines[0]
    assert "can't be decoded" in lines[1]


def test_indexes_snapshots_and_text_files_are_dumped() -> None:
    house = filled()
    assert dump(house, f"{4:020d}.index") == ["offset 6, position 184"]
    assert dump(house, f"{4:020d}.timeindex") == [
        f"timestamp {START_MS + 6}, offset 6",
        f"timestamp {START_MS + 7}, offset 7",
    ]
    assert dump(house, f"{20:020d}.snapshot")[0] == "producers before offset 20: 1"
    assert dump(house, f"{20:020d}.snapshot")[1].startswith("producer 5, epoch 1, last sequence 19, last offset 19")
    assert dump(house, "leader-epoch-checkpoint") == ["0", "3", "0 0", "1 8", "2 16"]
    assert dump(house, "partition.metadata")[0] == "version: 0"
    for name in ("meta.properties", "recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        assert list(dump_file(f"{DATA}/{name}", fs=house.fs))
    overwrite(house.fs, f"{SECOND}.index", b"123")
    overwrite(house.fs, f"{SECOND}.snapshot", b"123")
    assert dump(house, f"{4:020d}.index") == ["3 bytes follow the last complete entry"]
    assert dump(house, f"{4:020d}.snapshot")[0].startswith("invalid snapshot")
    with pytest.raises(ValueError, match="the name must end with one of"):
        dump(house, "notes.txt")
