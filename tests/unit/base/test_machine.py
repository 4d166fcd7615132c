"""State machines declared as tables, and their document."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest

from pylogd.base.machine import MachineTable, UnexpectedEvent
from tests.tools import tool

ROOT = Path(__file__).resolve().parents[3]


class DoorState(Enum):
    CLOSED = "Nobody can pass."
    OPEN = "Anybody can pass."
    GONE = "There is no door."


class DoorEvent(Enum):
    PUSHED = "Somebody pushed the door."
    REMOVED = "The house was pulled down."


ROWS: dict[DoorState, dict[DoorEvent, DoorState]] = {
    DoorState.CLOSED: {DoorEvent.PUSHED: DoorState.OPEN},
    DoorState.OPEN: {DoorEvent.PUSHED: DoorState.CLOSED},
    DoorState.GONE: {},
}
REMOVED = {DoorEvent.REMOVED: DoorState.GONE}
DOOR = MachineTable("Door", "Lets people in and out.", DoorState.CLOSED, ROWS, REMOVED)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return tool("generate_machine_docs")


def test_a_machine_follows_its_table() -> None:
    door = DOOR.machine()
    assert door.state is DoorState.CLOSED
    assert door.handle(DoorEvent.PUSHED) is DoorState.OPEN
    assert door.handle(DoorEvent.PUSHED) is DoorState.CLOSED
    assert door.state is DoorState.CLOSED


def test_machines_of_one_table_do_not_share_their_state() -> None:
    one, other = DOOR.machine(), DOOR.machine()
    one.handle(DoorEvent.PUSHED)
    assert (one.state, other.state) == (DoorState.OPEN, DoorState.CLOSED)


def test_an_event_that_the_state_does_not_name_changes_nothing() -> None:
    door = DOOR.machine()
    door.handle(DoorEvent.REMOVED)
    assert not door.allows(DoorEvent.PUSHED)
    with pytest.raises(UnexpectedEvent, match="Door: no transition from GONE by PUSHED"):
        door.handle(DoorEvent.PUSHED)
    assert door.state is DoorState.GONE


@pytest.mark.parametrize("state", DoorState)
def test_an_event_of_every_state(state: DoorState) -> None:
    assert DOOR.next(state, DoorEvent.REMOVED) is DoorState.GONE


def test_a_row_goes_before_an_event_of_every_state() -> None:
    rows = {**ROWS, DoorState.OPEN: {**ROWS[DoorState.OPEN], DoorEvent.REMOVED: DoorState.CLOSED}}
    table = MachineTable("Door", "", DoorState.CLOSED, rows, REMOVED)
    assert table.next(DoorState.OPEN, DoorEvent.REMOVED) is DoorState.CLOSED


@pytest.mark.parametrize(
    ("rows", "everywhere", "fault"),
    [
        ({DoorState.CLOSED: REMOVED, DoorState.GONE: {}}, {}, "states without a row: OPEN"),
        (ROWS, {}, "states that can't be reached: GONE; events that are not used: REMOVED"),
        ({state: {} for state in DoorState}, REMOVED, "states that can't be reached: OPEN"),
    ],
)
def test_a_table_that_is_not_whole_is_refused(
    rows: dict[DoorState, dict[DoorEvent, DoorState]], everywhere: dict[DoorEvent, DoorState], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        MachineTable("Door", "", DoorState.CLOSED, rows, everywhere)


def test_a_diagram_has_every_transition(generator: ModuleType) -> None:
    table = MachineTable("Door", "Summary.", DoorState.CLOSED, {**ROWS, DoorState.OPEN: {
        DoorEvent.PUSHED: DoorState.CLOSED, DoorEvent.REMOVED: DoorState.CLOSED}}, REMOVED)  # fmt: skip
    assert generator.diagram(table).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> CLOSED",
        "    CLOSED --> OPEN: PUSHED",
        "    OPEN --> CLOSED: PUSHED, REMOVED",
        "    GONE --> [*]",
    ]
    text = generator.section("pylogd/door.py", table)
    assert "In every state, `REMOVED` leads to `GONE`" in text
    assert "| `PUSHED` | Somebody pushed the door. |" in text


def test_the_page_of_the_site_has_every_table_of_the_package(generator: ModuleType) -> None:
    calls = sum(path.read_text(encoding="utf-8").count("= MachineTable(") for path in (ROOT / "pylogd").rglob("*.py"))
    assert len(list(generator.found_tables())) == calls - 1  # the one in the docstring of pylogd/base/machine.py
