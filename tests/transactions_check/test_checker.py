"""The checker finds each anomaly that it is for, in histories that have it, and none in one that has none."""

from __future__ import annotations

import pytest

from tests.transactions_check.checker import check
from tests.transactions_check.cycles import overtaking
from tests.transactions_check.history import Action, History, Outcome, Position, Step, Value


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
        readings={"r": [*source, *copies]},
        final=[*source, *copies],
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


def test_a_stable_offset_that_goes_back() -> None:
    made = history()
    made.stable["w"] = [("s", 0, 3), ("s", 1, 2), ("s", 0, 4), ("s", 0, 4)]
    assert found(made) == set()
    made.stable["w"] += [("s", 0, 3)]
    assert found(made) == {"stable offset went back"}


def mixed(final: str, **steps: str) -> list[str]:
    """Return the cycles of transactions that write one record to each of some partitions, of a letter each.

    final: what is in the partitions, such as "ab ba": the records of a-0 and b-0 in both orders. steps: those of each
    transaction, with a time each: `>` and a number sends that record, `!` is its acknowledgement, `<` and a letter
    reads from that.
    """
    made = History()
    for index, partition in enumerate(final.split()):
        for offset, name in enumerate(partition):
            number = sum(name in before for before in final.split()[:index])
            made.final.append((Position("s", index, offset), Value(f"{name}-0", number, final.count(name), "")))
    for name, text in steps.items():
        for step in text.split():
            kind, what, at = step[0], step[1:2], float(step[2:] or 0)
            number = int(what) if what.isdigit() else -1
            read = frozenset([f"{what}-0"]) if kind == "<" else frozenset()
            made.steps.setdefault(f"{name}-0", []).append(Step(_ACTIONS[kind], at, number, read))
    return list(check(made, set(), set()))


_ACTIONS = {
    "(": Action.BEGIN, ">": Action.SEND, "!": Action.ACKNOWLEDGED, "<": Action.READ, "?": Action.COMMIT,
    ")": Action.COMMITTED,
}  # fmt: skip


def kinds(found: list[str]) -> list[str]:
    return [text.partition(":")[0] for text in found]


def test_transactions_that_read_from_each_other() -> None:
    assert mixed("a b", a="(_1 >03 <b5 ?_7 )_9", b="(_2 >04 ?_4.5 )_4.7") == []
    found = mixed("a b", a="(_1 >03 <b5 ?_7 )_9", b="(_2 >04 <a6 ?_8 )_9.5")
    assert kinds(found) == ["cycle (write-read)"]
    assert "a-0 is before b-0" in found[0]
    assert "b-0 is before a-0" in found[0]


def test_a_transaction_that_reads_itself() -> None:
    assert kinds(mixed("a", a="(_1 >02 <a3 ?_4 )_5")) == ["cycle (write-read)"]


def test_writes_that_contradict_their_acknowledgements() -> None:
    """Each waits for its first record before it sends the second one, and each second is before the other's first."""
    found = mixed("ba ab", a="(_1 >03 >15 !16 ?_7 )_8", b="(_2 >04 >15.5 ?_9 )_9.5")
    assert found == []  # not acknowledged: they overtook each other, as Kafka allows
    steps = {"a": "(_1 >15 !16 >07 ?_8 )_9", "b": "(_2 >03 !04 >15 ?_8.5 )_9.5"}
    assert mixed("ba ab", **steps) == []
    steps["b"] = "(_2 >13 !14 >05 ?_8.5 )_9.5"
    assert mixed("ab ba", a="(_1 >03 !04 >15 ?_8 )_9", b=steps["b"]) == []
    assert kinds(mixed("ba ab", a="(_1 >03 !04 >15 ?_8 )_9", b=steps["b"])) == ["cycle (write-write)"]


def test_a_write_before_what_its_transaction_had_read() -> None:
    assert mixed("ab", a="(_1 >02 ?_3 )_4", b="(_5 <a6 >07 ?_8 )_9") == []
    assert kinds(mixed("ba", a="(_1 >02 ?_3 )_4", b="(_1 <a6 >07 ?_8 )_9")) == ["cycle (write-read, write-write)"]


def test_a_write_before_what_was_over_when_it_began() -> None:
    assert mixed("ab", a="(_1 >02 ?_3 )_4", b="(_5 >07 ?_8 )_9") == []
    assert kinds(mixed("ba", a="(_1 >02 ?_3 )_4", b="(_5 >07 ?_8 )_9")) == ["cycle (real time, write-write)"]


def test_overtaking_is_counted() -> None:
    made = History()
    made.final = [
        (Position("s", index, offset), Value(f"{name}-0", index, 3, ""))
        for index, names in enumerate(["ab", "ba", "ab"])
        for offset, name in enumerate(names)
    ]
    assert overtaking(made) == 1
