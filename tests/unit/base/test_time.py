"""The wall clock is read in one module only, and timers use the monotonic clock."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.selectreactor import SelectReactor

import pylogd
from pylogd.base.clock import use_monotonic_time

PACKAGE = Path(pylogd.__file__).parent
THE_ONE = PACKAGE / "base" / "clock.py"
#: Functions that read the wall clock, in `time` and in `datetime`, with or without the module's name.
READERS = {
    "time": {"time", "time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "gmtime", "ctime", "asctime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "runtime": {"seconds"},
}
#: Modules in which the names appear legitimately, and why.
ALLOWED = {
    ("client/zookeeper/loop.py", "time.clock_gettime"): "CLOCK_BOOTTIME, which is monotonic",
    ("link/monotonic_reactor.py", "runtime.seconds"): "looks whether a reactor counts by it",
}
#: Modules that may import the process's reactor; they have to give it the monotonic clock or wrap it.
REACTOR_OWNERS = {"base/process/shell.py", "client/deferred/cluster.py"}


def wall_reads(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each use of a function that reads the wall clock, called or passed on, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if node.attr in READERS.get(owner, ()):
                yield f"{owner}.{node.attr}", node.lineno
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").rpartition(".")[2]
            names = READERS.get(module, set()) if module in ("time", "runtime") else set()
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names if alias.name in names)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_the_wall_clock_is_read_in_one_module() -> None:
    faults = []
    for path in sources():
        name = path.relative_to(PACKAGE).as_posix()
        if path != THE_ONE:
            found = wall_reads(ast.parse(path.read_text(encoding="utf-8")))
            faults += [f"{name}:{line}: {what}" for what, line in found if (name, what) not in ALLOWED]
    assert not faults, "take a `now_ms` parameter, or pylogd.base.clock.wall_ms: " + ", ".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.time()", "import time\nnow = time.time_ns", "from time import time",
        "from datetime import datetime\ndatetime.now()", "import datetime\ndatetime.datetime.now()",
        "from datetime import date\ndate.today()", "from twisted.python.runtime import seconds",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert list(wall_reads(ast.parse(text)))


def test_a_reactors_time_is_never_a_time_stamp() -> None:
    """Time stamps are in milliseconds; timers count in seconds."""
    faults = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Call):
                called = node.left.func
                if isinstance(called, ast.Attribute) and called.attr == "seconds":
                    faults.append(path.relative_to(PACKAGE).as_posix())
    assert faults == ["broker/replica/service.py"]  # fetch sessions measure how long they are idle in milliseconds


def test_modules_with_the_reactor_give_it_the_monotonic_clock() -> None:
    takers: set[str] = set()
    for path in sources():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "twisted.internet":
                takers.update(path.relative_to(PACKAGE).as_posix() for alias in node.names if alias.name == "reactor")
    assert takers == REACTOR_OWNERS


class TestReactor:
    """Twisted's own reactor, with a wall clock that the test sets."""

    @pytest.fixture
    def wall(self) -> list[float]:
        return [1_700_000_000.0]

    @pytest.fixture
    def reactor(self, wall: list[float]) -> Any:
        reactor: Any = SelectReactor()
        reactor.seconds = lambda: wall[0]
        yield reactor
        for call in reactor.getDelayedCalls():
            call.cancel()
        reactor.removeAll()
        reactor.runUntilCurrent()

    def test_a_step_moves_no_timer(self, reactor: Any, wall: list[float]) -> None:
        use_monotonic_time(reactor)
        called: list[str] = []
        reactor.callLater(3600, called.append, "in an hour")
        reactor.callLater(0, called.append, "now")
        wall[0] += 70 * 3600
        reactor.runUntilCurrent()
        assert called == ["now"]
        wall[0] -= 600 * 3600
        reactor.callLater(0, called.append, "again")
        reactor.runUntilCurrent()
        assert called == ["now", "again"]
        assert 3500 < reactor.timeout() <= 3600

    def test_calls_from_before_keep_their_delay(self, reactor: Any) -> None:
        late, soon = reactor.callLater(3600, lambda: None), reactor.callLater(60, lambda: None)
        use_monotonic_time(reactor)
        assert 3500 < late.getTime() - time.monotonic() <= 3600
        assert 50 < reactor.timeout() <= 60
        soon.reset(120)
        soon.delay(30)
        assert 140 < soon.getTime() - time.monotonic() <= 150

    def test_a_second_time_changes_nothing(self, reactor: Any) -> None:
        use_monotonic_time(reactor)
        call = reactor.callLater(60, lambda: None)
        due = call.getTime()
        use_monotonic_time(reactor)
        assert call.getTime() == due
