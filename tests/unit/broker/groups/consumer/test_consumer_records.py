"""The records of consumer groups: as Kafka writes them, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.groups.consumer.members import ClassicProtocol, ConsumerMember, MemberState
from pylogd.broker.groups.consumer.records import (
    AssignmentEpoch,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    Record,
    RecordType,
    RegularExpression,
    Removed,
    TargetAssignment,
    decode,
    encode,
    is_of_consumer_group,
)
from pylogd.broker.groups.records import group_key, offset_key
from pylogd.broker.replica.internal_records import InvalidRecord

TOPIC = bytes(range(16))

TEXT = st.text(max_size=20)
EPOCH = st.integers(-2, 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
PARTITION = st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1))
ASSIGNED = st.dictionaries(PARTITION, EPOCH, max_size=5)
MEMBER = st.builds(
    ConsumerMember, TEXT, st.none() | TEXT, st.none() | TEXT, TEXT, TEXT, st.frozensets(TEXT), st.none() | TEXT,
    st.none() | TEXT, st.integers(-1, 2**31 - 1),
)  # fmt: skip
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(GroupEpoch, TEXT, EPOCH, LONG),
    st.builds(MemberMetadata, TEXT, MEMBER),
    st.builds(AssignmentEpoch, TEXT, EPOCH, LONG),
    st.builds(TargetAssignment, TEXT, TEXT, st.frozensets(PARTITION, max_size=5)),
    st.builds(CurrentAssignment, TEXT, TEXT, EPOCH, EPOCH, st.sampled_from(MemberState), ASSIGNED, ASSIGNED),
    st.builds(RegularExpression, TEXT, TEXT, st.frozensets(TEXT), LONG, LONG),
    st.builds(Removed, st.sampled_from([RecordType.GROUP, RecordType.TARGET]), TEXT, st.just("")),
    st.builds(Removed, st.sampled_from([RecordType.MEMBER, RecordType.REGULAR_EXPRESSION]), TEXT, TEXT),
)


@given(RECORDS)
def test_what_is_written_is_read(record: Record) -> None:
    key, value = encode(record)
    assert is_of_consumer_group(key)
    assert decode(key, value) == record


def test_a_member_as_kafka_writes_it() -> None:
    member = ConsumerMember("m", None, None, "app", "/10.0.0.1", frozenset(["b", "a"]), None, "range", 300_000)
    key, value = encode(MemberMetadata("g", member))
    assert key.hex(" ") == "00 05 00 01 67 00 01 6d"
    assert value == bytes.fromhex(
        "0000 00 00 04617070 0a2f31302e302e302e31 03 0261 0262 00 000493e0 0672616e6765 00".replace(" ", "")
    )


def test_a_classic_member_as_kafka_writes_it() -> None:
    classic = ClassicProtocol(45_000, (("range", b"\0\1"), ("sticky", b"")))
    member = ConsumerMember("m", "i", None, "app", "/10.0.0.1", frozenset("t"), None, None, 300_000, classic=classic)
    key, value = encode(MemberMetadata("g", member))
    protocols = "03 0672616e6765 030001 00 07737469636b79 01 00"
    expected = f"0000 0269 00 04617070 0a2f31302e302e302e31 02 0274 00 000493e0 00 01 001a 01 0000afc8 {protocols} 00"
    assert value == bytes.fromhex(expected.replace(" ", ""))
    assert decode(key, value) == MemberMetadata("g", member)


def test_a_current_assignment_as_kafka_writes_it() -> None:
    state = MemberState.UNREVOKED_PARTITIONS
    key, value = encode(CurrentAssignment("g", "m", 7, 6, state, {(TOPIC, 0): 3, (TOPIC, 2): 7}, {}))
    assert key.hex(" ") == "00 08 00 01 67 00 01 6d"
    epochs = "01 00 09 03 00000003 00000007"
    expected = f"0000 00000007 00000006 01 02 {TOPIC.hex()} 03 00000000 00000002 {epochs} 01 00"
    assert value == bytes.fromhex(expected.replace(" ", ""))


def test_assignments_without_epochs_are_those_of_the_member() -> None:
    key, _ = encode(Removed(RecordType.CURRENT_OF_MEMBER, "g", "m"))
    value = bytes.fromhex(f"0000000000070000000600 02{TOPIC.hex()}02000000050001 00".replace(" ", ""))
    assert decode(key, value) == CurrentAssignment("g", "m", 7, 6, MemberState.STABLE, {(TOPIC, 5): 7}, {})


def test_tags_that_are_not_known_are_skipped() -> None:
    key, value = encode(GroupEpoch("g", 5))
    assert value is not None
    assert decode(key, value[:-1] + b"\x02\x05\x01x\x06\x00") == GroupEpoch("g", 5)


def test_records_of_others_are_told_apart() -> None:
    assert not is_of_consumer_group(group_key("g"))
    assert not is_of_consumer_group(offset_key("g", "t", 0))
    assert not is_of_consumer_group(b"\0")
    assert decode(b"\x00\x04\x00\x01g", b"\x00\x00\x01\x00") is None


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (GroupEpoch("g", 1), "0001 00000001 00"),
        (GroupEpoch("g", 1), "0000 0000"),
        (RegularExpression("g", "e", frozenset(), 1, 1), "0000 ffffffff7f"),
        (RegularExpression("g", "e", frozenset(), 1, 1), "0000 80808080808001"),
        (RegularExpression("g", "e", frozenset(), 1, 1), "0000 02 03 ffff"),
        (RegularExpression("g", "e", frozenset(), 1, 1), "0000 02 00"),
        (CurrentAssignment("g", "m", 1, 1, MemberState.STABLE, {}, {}), "0000 00000001 00000001 7f"),
    ],
)
def test_malformed_records(record: Record, value: str) -> None:
    with pytest.raises(InvalidRecord):
        decode(encode(record)[0], bytes.fromhex(value.replace(" ", "")))


@given(RECORDS, st.data())
def test_a_record_that_is_cut_off(record: Record, data: st.DataObject) -> None:
    key, value = encode(record)
    whole = value if value is not None else key
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(InvalidRecord):
        decode(key, cut) if value is not None else decode(cut, None)
