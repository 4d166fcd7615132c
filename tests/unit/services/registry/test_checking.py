"""Who waits for a process that checks schemas, and what a killed one leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pylogd.services.registry.checking import _MOST_WAITING, SchemaChecker, WorkFolders
from pylogd.services.registry.errors import Overloaded
from pylogd.services.registry.model import AVRO, Definition

_SCHEMA = (Definition("", '"int"'),)


def test_one_client_leaves_room_in_the_queue_for_others() -> None:
    checker = SchemaChecker(None, workers=0)
    refused: list[Any] = []
    for _ in range(_MOST_WAITING + 1):
        checker.read("crowd", AVRO, _SCHEMA).addErrback(lambda why: refused.append(why.check(Overloaded)))
    assert refused == [Overloaded]
    other = checker.read("other", AVRO, _SCHEMA)
    assert not other.called and refused == [Overloaded, Overloaded]


def test_what_killed_processes_left_behind_is_removed(tmp_path: Path) -> None:
    for name in ("pylogd-proto-999999999-x", "pylogd-proto-abc", f"pylogd-proto-{os.getpid()}-x", "other"):
        (tmp_path / name / "schemas").mkdir(parents=True)
    made = Path(WorkFolders(str(tmp_path)).make())
    assert made.is_dir() and made.name.startswith(f"pylogd-proto-{os.getpid()}-")
    assert {one.name for one in tmp_path.iterdir()} == {made.name, f"pylogd-proto-{os.getpid()}-x", "other"}
