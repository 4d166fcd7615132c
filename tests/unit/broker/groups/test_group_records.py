"""The records of the offsets topic: Kafka's encoding, and malformed records."""

from __future__ import annotations

import pytest

from pylogd.broker.groups.records import (
    Committed,
    GroupKey,
    OffsetKey,
    StoredGroup,
    StoredMember,
    consumer_topics,
    group_key,
    group_value,
    offset_key,
    offset_value,
    read_group_value,
    read_key,
    read_offset_value,
)
from pylogd.broker.replica.internal_records import InvalidRecord
from pylogd.broker.replica.internal_topic import partition_of

MEMBER = StoredMember("m", "i", "c", "/h", 60_000, 10_000, b"sub", b"share")
TOPIC_ID = bytes(range(1, 17))
WITH_ID = Committed(7, 2, "hi", 9, topic_id=TOPIC_ID)
GROUP = StoredGroup("consumer", 3, "range", "m", 1_700_000_000_000, (MEMBER,))


class TestBytes:
    """Encodings written by hand from Kafka's schemas."""

    def test_an_offset(self) -> None:
        assert offset_key("g", "t", 5).hex() == "000100016700017400000005"
        value = offset_value(Committed(7, 2, "hi", 9))
        assert value.hex() == "0003000000000000000700000002000268690000000000000009"

    def test_an_offset_with_an_expiry(self) -> None:
        value = offset_value(Committed(7, 2, "", 9, 10))
        assert value.hex() == "0001000000000000000700000000000000000009000000000000000a"

    def test_the_id_of_an_offsets_topic(self) -> None:
        """Kafka 4.3.1 reads the values of versions 3 and 1, and ignores the tagged fields behind them."""
        tags = "010010" + TOPIC_ID.hex()
        value = offset_value(Committed(7, 2, "hi", 9, topic_id=TOPIC_ID))
        assert value.hex() == "0003000000000000000700000002000268690000000000000009" + tags
        value = offset_value(Committed(7, 2, "", 9, 10, TOPIC_ID))
        assert value.hex() == "0001000000000000000700000000000000000009000000000000000a" + tags

    def test_kafkas_version_with_the_id_is_read(self) -> None:
        value = "00040000000000000007000000020368690000000000000009"
        assert read_offset_value(bytes.fromhex(value + "00")) == Committed(7, 2, "hi", 9)
        with_id = bytes.fromhex(value + "010010" + TOPIC_ID.hex())
        assert read_offset_value(with_id) == Committed(7, 2, "hi", 9, topic_id=TOPIC_ID)

    def test_a_group(self) -> None:
        assert group_key("g").hex() == "0002000167"
        empty = StoredGroup("consumer", 1, None, None, 9, ())
        head = "00030008636f6e73756d657200000001"
        assert group_value(empty).hex() == head + "ffffffff000000000000000900000000"
        member = (
            "00016d" "000169" "000163" "00022f68" "0000ea60" "00002710" "00000003737562" "000000057368617265"
        )  # fmt: skip
        text = group_value(GROUP).hex()
        assert text == (
            "0003" "0008636f6e73756d6572" "00000003" "000572616e6765" "00016d" "0000018bcfe56800" "00000001" + member
        )  # fmt: skip


class TestReading:
    def test_decoding_inverts_encoding(self) -> None:
        assert read_key(offset_key("g", "t", 5)) == OffsetKey("g", "t", 5)
        assert read_key(group_key("g")) == GroupKey("g")
        assert read_group_value(group_value(GROUP)) == GROUP
        expiring = Committed(7, -1, "ü", 9, 10)
        for committed in (Committed(7, 2, "hi", 9), expiring, WITH_ID, expiring._replace(topic_id=TOPIC_ID)):
            assert read_offset_value(offset_value(committed)) == committed

    def test_older_versions(self) -> None:
        assert read_key(bytes.fromhex("000000016700017400000005")) == OffsetKey("g", "t", 5)
        for version in (0, 2):
            old = bytes.fromhex(f"000{version}000000000000000700000000000000000009")
            assert read_offset_value(old) == Committed(7, -1, "", 9)
        old = bytes.fromhex("00000001630000000100017200016d00000001")
        old += bytes.fromhex("00016d000163000168000027100000000000000000")
        member = StoredMember("m", None, "c", "h", 10_000, 10_000, b"", b"")
        assert read_group_value(old) == StoredGroup("c", 1, "r", "m", -1, (member,))

    def test_a_newer_key_version_is_decoded_as_none(self) -> None:
        assert read_key(bytes.fromhex("0003000167")) is None

    @pytest.mark.parametrize("data", ["", "0001", "00010005", "0001fff0", "0001ffff", "0001000180", "00010001670001"])
    def test_broken_keys(self, data: str) -> None:
        with pytest.raises(InvalidRecord):
            read_key(bytes.fromhex(data))

    @pytest.mark.parametrize("data", ["", "0009", "ffff", "000300000000"])
    def test_broken_values(self, data: str) -> None:
        with pytest.raises(InvalidRecord):
            read_offset_value(bytes.fromhex(data))
        with pytest.raises(InvalidRecord):
            read_group_value(bytes.fromhex(data))

    def test_a_topic_id_of_another_length(self) -> None:
        with pytest.raises(InvalidRecord, match="15 bytes"):
            read_offset_value(offset_value(Committed(7, 2, "", 9)) + b"\1\0\x0f" + bytes(15))

    def test_more_members_than_bytes(self) -> None:
        data = group_value(StoredGroup("c", 1, None, None, 0, ()))[:-4] + b"\x7f\xff\xff\xff"
        with pytest.raises(InvalidRecord, match="members"):
            read_group_value(data)

    def test_subscriptions(self) -> None:
        assert consumer_topics(bytes.fromhex("000100000002000161000162ffffffff")) == frozenset({"a", "b"})
        for data in ("", "ffff00000000", "00017fffffff", "000100000001"):
            assert consumer_topics(bytes.fromhex(data)) is None


@pytest.mark.parametrize(
    ("group_id", "count", "index"),
    # Java's values: "g".hashCode() is 103, "polygenelubricants" has the smallest int, "my-group" a negative one.
    [("g", 50, 3), ("", 50, 0), ("polygenelubricants", 50, 0), ("my-group", 50, 12), ("ü𝄞", 7, 1)],
)
def test_the_partition_is_the_same_as_with_kafka(group_id: str, count: int, index: int) -> None:
    assert partition_of(group_id, count) == index
