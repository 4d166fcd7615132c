"""The screen of `pylogd top`, with textual.

Strategy: a thread looks at the cluster, and then waits; each look replaces the rows of the table. A look that fails is
named in the title, and the last rows stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Header
from textual.worker import get_current_worker

from pylogd.base.errors import PylogdError
from pylogd.base.process.printable import printable
from pylogd.cli.top_sample import COLUMNS, SHOWN, Look

_STEP_SECONDS: Final = 0.1


class TopApp(App[None]):
    """A table of topics, groups or brokers."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("t", "view('topics')", "Topics"), ("g", "view('groups')", "Groups"), ("b", "view('brokers')", "Brokers"),
        ("s", "sort", "Sort by the next column"), ("r", "reverse", "Reverse"), ("q", "quit", "Quit"),
    ]  # fmt: skip

    def __init__(self, look: Callable[[], Look], view: str, interval: float, where: str) -> None:
        """Make the screen.

        look: asks the cluster; it is called in a thread.
        interval: the seconds between two looks.
        where: the name of the cluster in the title.
        """
        super().__init__()
        self.title = f"pylogd top, {where}"
        self._look = look
        self._interval = interval
        self._view = view
        self._sort = 0
        self._descending = False
        self._found: Look | None = None

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Header()
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to ask the cluster."""
        self.sub_title = f"{self._view}: asking the cluster"
        self.run_worker(self._keep_looking, thread=True, exclusive=True)

    def _keep_looking(self) -> None:
        worker = get_current_worker()
        while not worker.is_cancelled:
            try:
                found = self._look()
            except PylogdError as error:
                self.call_from_thread(self._failed, str(error))
            else:
                self.call_from_thread(self._show, found)
            waited = 0.0
            while waited < self._interval and not worker.is_cancelled:
                time.sleep(_STEP_SECONDS)
                waited += _STEP_SECONDS

    def _failed(self, error: str) -> None:
        self.sub_title = printable(f"no answer: {error}")

    def _show(self, found: Look) -> None:
        self._found = found
        self._fill()

    def _fill(self) -> None:
        """Put the rows of the view into the table; the cursor stays on its row."""
        tables = self.query(DataTable)
        if self._found is None or not tables:  # nothing was found yet, or the screen is being closed
            return
        table: DataTable[Any] = tables.first()
        at = table.cursor_row
        table.clear(columns=True)
        names = [column.lstrip(">") for column in COLUMNS[self._view]]
        for index, name in enumerate(names):
            mark = ("▼" if self._descending else "▲") if index == self._sort else ""
            table.add_column(f"{name}{mark}")
        key = names[self._sort]
        rows = sorted(self._found.rows(self._view), key=lambda row: _order(row[key]), reverse=self._descending)
        for row in rows:
            table.add_row(*(_cell(name, row[name]) for name in names))
        table.move_cursor(row=min(at, max(0, len(rows) - 1)))
        silent = ", ".join(map(str, self._found.silent))
        self.sub_title = f"{len(rows)} {self._view}" + (f"; no answer from brokers {silent}" if silent else "")

    def action_view(self, name: str) -> None:
        """Show topics, groups or brokers."""
        self._view, self._sort, self._descending = name, 0, False
        self._fill()

    def action_sort(self) -> None:
        """Sort by the next column; numbers have the largest first."""
        columns = COLUMNS[self._view]
        self._sort = (self._sort + 1) % len(columns)
        self._descending = columns[self._sort].startswith(">")
        self._fill()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._descending = not self._descending
        self._fill()


def _order(value: Any) -> tuple[bool, Any]:
    """Return a sort key: unknown values come first."""
    return value is not None, "" if value is None else value


def _cell(name: str, value: Any) -> Text:
    text = "-" if value is None else SHOWN[name](value) if name in SHOWN else str(value)
    return Text(printable(text), justify="right" if isinstance(value, (int, float)) else "left")
