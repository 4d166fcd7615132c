"""The records of `__transaction_state`, against bytes in Kafka's format and against themselves."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pylogd.broker.replica.internal_records import InvalidRecord
from pylogd.broker.transactions.records import read_key, read_value, transaction_key, transaction_value
from pylogd.broker.transactions.states import BY_CODE, TransactionState
from pylogd.broker.transactions.values import TransactionValue

VALUE = TransactionValue(
    7, 3, 60_000, 1_700_000_000_000, TransactionState.ONGOING, frozenset({("t", 1), ("t", 0), ("u", 2)}),
    1_700_000_000_001, previous_id=6, next_id=8, version=2,
)  # fmt: skip
HEAD = "0000000000000007 0003 0000ea60 01"
TIMES = "0000018bcfe56800 0000018bcfe56801"
PLAIN = f"0000 {HEAD} 00000002 000174 00000002 00000000 00000001 000175 00000001 00000002 {TIMES}"
FLEXIBLE = (
    f"0001 {HEAD} 03 0274 03 00000000 00000001 00 0275 02 00000002 00 {TIMES}"
    " 03 00 08 0000000000000006 01 08 0000000000000008 02 02 0002"
)
EMPTY_PLAIN = "0000 0000000000000007 0000 000003e8 00 ffffffff 0000000000000001 ffffffffffffffff"
EMPTY_FLEXIBLE = "0001 0000000000000007 0000 000003e8 00 00 0000000000000001 ffffffffffffffff 00"
EMPTY = TransactionValue(7, 0, 1000, 1)

values = st.builds(
    TransactionValue,
    producer_id=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, (1 << 15) - 1),
    timeout_ms=st.integers(1, (1 << 31) - 1),
    updated_ms=st.integers(0, (1 << 62)),
    state=st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    partitions=st.frozensets(st.tuples(st.text("ab.-é", min_size=1, max_size=200), st.integers(0, 9)), max_size=9),
    started_ms=st.integers(-1, 1 << 62),
    previous_id=st.integers(-1, 1 << 62),
    next_id=st.integers(-1, 1 << 62),
    version=st.integers(0, 2),
)


def test_kafkas_keys() -> None:
    assert transaction_key("x").hex() == "0000000178"
    assert read_key(bytes.fromhex("0000000178")) == "x"
    assert read_key(bytes.fromhex("00010178")) is None


@pytest.mark.parametrize(
    ("value", "flexible", "text"),
    [(VALUE, True, FLEXIBLE), (VALUE, False, PLAIN), (EMPTY, True, EMPTY_FLEXIBLE), (EMPTY, False, EMPTY_PLAIN)],
)
def test_kafkas_values(value: TransactionValue, flexible: bool, text: str) -> None:
    raw = transaction_value(value, flexible=flexible)
    assert raw == bytes.fromhex(text)
    assert transaction_value(read_value(raw), flexible=flexible) == raw


def test_the_states_have_kafkas_numbers_and_names() -> None:
    assert [(code, state.kafka_name) for code, state in BY_CODE.items()] == [
        (0, "Empty"), (1, "Ongoing"), (2, "PrepareCommit"), (3, "PrepareAbort"), (4, "CompleteCommit"),
        (5, "CompleteAbort"), (6, "Dead"), (7, "PrepareEpochFence"),
    ]  # fmt: skip


@given(values)
def test_values_are_read_as_written(value: TransactionValue) -> None:
    assert read_value(transaction_value(value, flexible=True)) == value


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for raw in (data, b"\0\1" + data, bytes.fromhex(f"0001 {HEAD}") + data):
        with suppress(InvalidRecord):
            read_value(raw)
        with suppress(InvalidRecord):
            read_key(raw)


@pytest.mark.parametrize("cut", range(1, len(bytes.fromhex(FLEXIBLE)), 5))
def test_a_value_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(InvalidRecord):
        read_value(bytes.fromhex(FLEXIBLE)[:-cut])


def test_an_unknown_state_or_version_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="state 9"):
        read_value(bytes.fromhex("0000 0000000000000007 0000 000003e8 09 ffffffff 0000000000000001 ffffffffffffffff"))
    with pytest.raises(InvalidRecord, match="version 2"):
        read_value(b"\0\2" + bytes(60))
