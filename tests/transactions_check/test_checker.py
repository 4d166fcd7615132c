"""The checker finds each anomaly that it is for, in histories that have it, and none in one that has none."""

from __future__ import annotations

import pytest

from tests.transactions_check.checker import check
from tests.transactions_check.history import History, Outcome, Position, Value


def history() -> History:
    """Two transactions are copied, one is aborted, one ended unheard of."""
    source = [
        (Position("s", 0, 0), Value("f-0", 0, 2, "")), (Position("s", 1, 0), Value("f-0", 1, 2, "")),
        (Position("s", 0, 2), Value("f-2", 0, 1, "")), (Position("s", 1, 4), Value("f-3", 0, 1, "")),
    ]  # fmt: skip
    copies = [
        (Position("c", index, offset), Value("m-1", number, 4, value.name))
        for number, (index, offset, (_, value)) in enumerate(zip((0, 1, 0, 1), (0, 0, 1, 1), source, strict=True))
    ]
    return History(
        {
            "f-0": Outcome.COMMITTED, "f-1": Outcome.ABORTED, "f-2": Outcome.COMMITTED, "f-3": Outcome.UNKNOWN,
            "m-1": Outcome.COMMITTED,
        },
        {"m-1": [value.name for _, value in source]},
        {"r": [*source, *copies]},
        [*source, *copies],
    )  # fmt: skip


def found(made: History) -> set[str]:
    return {text.split(":")[0] for text in check(made, {"s"}, {"c"})}


def test_nothing_is_found_where_nothing_is() -> None:
    assert check(history(), {"s"}, {"c"}) == []
    made = history()
    made.outcomes["f-9"] = Outcome.UNKNOWN  # nothing of it is there: it was aborted
    assert found(made) == set()


def test_a_lost_write() -> None:
    made = history()
    made.outcomes["f-9"] = Outcome.COMMITTED
    assert found(made) == {"lost write"}


@pytest.mark.parametrize("at_the_end", [False, True])
def test_an_aborted_read(at_the_end: bool) -> None:
    made = history()
    made.outcomes["f-3"] = Outcome.ABORTED
    if not at_the_end:
        made.final = [
            (place, value) for place, value in made.final if "f-3" not in (value.transaction, value.cause[:3])
        ]
        made.outcomes["m-1"] = Outcome.UNKNOWN
    assert "aborted read" in found(made)


def test_a_torn_transaction() -> None:
    made = history()
    for reading in (made.final, made.readings["r"]):
        del reading[1]
    assert found(made) == {"torn transaction", "aborted read"}  # the copy of it is a read of what is not there


def test_a_duplicate() -> None:
    made = history()
    made.final.append((Position("s", 0, 9), Value("f-2", 0, 1, "")))
    assert found(made) == {"duplicate"}
    made = history()
    made.readings["r"].append(made.readings["r"][-1])
    assert found(made) == {"duplicate", "out of order"}


def test_lost_and_double_copies() -> None:
    made = history()
    made.final.append((Position("s", 1, 9), Value("f-4", 0, 1, "")))
    assert found(made) == {"lost copy"}
    made = history()
    made.final.append((Position("c", 1, 9), Value("m-2", 0, 1, "f-2#0")))
    assert found(made) == {"duplicate"}


def test_an_intermediate_read() -> None:
    made = history()
    made.readings["r"].insert(3, (Position("s", 1, 2), Value("f-5", 0, 1, "")))
    made.outcomes["f-5"] = Outcome.UNKNOWN
    assert found(made) == {"intermediate read"}


def test_records_out_of_order() -> None:
    made = history()
    made.final.append((Position("s", 0, 7), Value("f-1", 0, 1, "")))
    made.outcomes["f-1"] = Outcome.COMMITTED
    made.final.append((Position("c", 0, 7), Value("n-1", 0, 1, "f-1#0")))
    assert found(made) == {"out of order"}
    made = history()
    made.readings["r"][:2] = reversed(made.readings["r"][:2])
    assert found(made) == set()  # two partitions
    made.readings["r"].append(made.readings["r"].pop(0))
    made.readings["r"].append(made.readings["r"].pop(0))
    assert found(made) == {"out of order"}


def test_a_cycle() -> None:
    made = history()
    made.read_by["f-0"] = ["m-1#0"]
    assert found(made) == {"cycle"}
    made.read_by = {"m-1": ["f-0#0", "f-2#0"], "f-2": ["f-0#1"]}
    assert found(made) == set()
