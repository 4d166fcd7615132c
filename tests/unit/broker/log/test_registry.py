"""The open logs can be listed while another thread opens one."""

from __future__ import annotations

import gc
from typing import Any, cast

from pylogd.broker.log.log import Log
from pylogd.broker.log.registry import LogRegistry


def test_the_logs_are_listed_while_a_collection_lets_another_thread_add_one() -> None:
    registry = LogRegistry()
    a_log = cast(Log, None)
    registry.logs = {("t", index): a_log for index in range(1000)}

    def add(_phase: str, _info: Any) -> None:
        registry.logs["another", len(registry.logs)] = a_log

    threshold = gc.get_threshold()
    gc.callbacks.append(add)
    gc.set_threshold(50)
    try:
        found = registry.open_items()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(add)
    assert len(found) >= 1000
    assert len(registry.logs) > 1000, "the listing was interrupted"
