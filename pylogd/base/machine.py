"""Declare state machines as tables, and run them.

States and events are enums whose values explain each in one sentence. A table has the next state for each state and
event. `tools/generate_machine_docs.py` prints all tables of the package, as diagrams.

    class DoorState(Enum):
        CLOSED = "Nobody can pass."
        OPEN = "Anybody can pass."

    class DoorEvent(Enum):
        PUSHED = "Somebody pushed the door."

    DOOR = MachineTable(
        "Door", "Lets people in and out.", DoorState.CLOSED,
        {DoorState.CLOSED: {DoorEvent.PUSHED: DoorState.OPEN}, DoorState.OPEN: {DoorEvent.PUSHED: DoorState.CLOSED}},
    )

    door = DOOR.machine()
    door.handle(DoorEvent.PUSHED)       # door.state is DoorState.OPEN

Rules: a machine has only its state; its owner does the work of a state. An event that is not in a state's row is an
error of the program. A table is checked when it is made: each state must have a row and be reachable, and each event
must be used.

Automat, on which Twisted depends, is not used for these reasons: its inputs call synchronous outputs, while most states
here are a coroutine that waits; only private attributes list its transitions; its import takes 8 ms and 340 KB, also in
the blocking client and the command line; and an event takes 1.1 us instead of 0.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


#: For each event that may happen in a state, the next state and the next state's row.
Row: TypeAlias = "dict[E, tuple[S, Row[E, S]]]"


class UnexpectedEvent(Exception):
    """An event that the machine's table does not allow in its present state."""


class MachineTable(Generic[S, E]):
    """The transitions of one kind of machine.

    title, summary: the title and summary in the documentation.
    initial: the state in which machines begin.
    transitions: for each state, the next state for each event. A state with an empty row is final.
    everywhere: events that lead to the same state from every state, unless a state's row has another one.
    """

    __slots__ = ("_rows", "everywhere", "initial", "summary", "title", "transitions")

    def __init__(
        self,
        title: str,
        summary: str,
        initial: S,
        transitions: Mapping[S, Mapping[E, S]],
        everywhere: Mapping[E, S] = MappingProxyType({}),
    ) -> None:
        """Raises ValueError for a state without a row, a state that can't be reached, or an event that is not used."""
        self.title = title
        self.summary = summary
        self.initial = initial
        self.transitions = transitions
        self.everywhere = everywhere
        rows = {state: {**everywhere, **row} for state, row in transitions.items()}
        self._check(rows)
        self._rows: dict[S, Row[E, S]] = {state: {} for state in rows}
        for state, row in rows.items():
            self._rows[state].update((event, (target, self._rows[target])) for event, target in row.items())

    def machine(self) -> Machine[S, E]:
        """Return a machine in the initial state."""
        return Machine(self)

    def next(self, state: S, event: E) -> S:
        """Return the state to which `event` leads from `state`. Raises UnexpectedEvent."""
        try:
            return self._rows[state][event][0]
        except KeyError:
            raise self.unexpected(state, event) from None

    def row(self, state: S) -> Row[E, S]:
        """Return, for each event that may happen in `state`, the next state and its row."""
        return self._rows[state]

    def unexpected(self, state: S, event: E) -> UnexpectedEvent:
        """Return the error for an event that `state` does not allow."""
        return UnexpectedEvent(f"{self.title}: no transition from {state.name} by {event.name}")

    def __iter__(self) -> Iterator[tuple[S, E, S]]:
        """Iterate over (state, event, next state), without the events of `everywhere`."""
        for state, row in self.transitions.items():
            for event, target in row.items():
                yield state, event, target

    def _check(self, rows: Mapping[S, Mapping[E, S]]) -> None:
        missing = set(type(self.initial).__members__.values()) - set(rows)
        reached, new = set[S](), {self.initial, *self.everywhere.values()}
        while new:
            reached |= new
            new = {target for state in new for target in rows.get(state, {}).values()} - reached
        used: set[E] = {event for row in rows.values() for event in row}
        unused = {event for kind in {type(event) for event in used} for event in kind.__members__.values()} - used
        if missing or len(reached) < len(rows) or unused:
            faults: dict[str, set[Any]] = {
                "states without a row": missing,
                "states that can't be reached": set(rows) - reached,
                "events that are not used": unused,
            }
            text = "; ".join(
                f"{what}: {', '.join(sorted(one.name for one in found))}" for what, found in faults.items() if found
            )
            raise ValueError(f"{self.title}: {text}")


class Machine(Generic[S, E]):
    """One machine. `state` is its present state."""

    __slots__ = ("_row", "_table", "state")

    def __init__(self, table: MachineTable[S, E]) -> None:
        self._table = table
        self.state = table.initial
        self._row = table.row(table.initial)

    def handle(self, event: E) -> S:
        """Follow `event` and return the new state. Raises UnexpectedEvent; then the state does not change."""
        try:
            self.state, self._row = self._row[event]
        except KeyError:
            raise self._table.unexpected(self.state, event) from None
        return self.state

    def allows(self, event: E) -> bool:
        """Return whether `event` may happen now."""
        return event in self._row
