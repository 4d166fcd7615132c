"""The log of actions: the user, the action, the cluster, the time, the address, and the outcome.

Each action is a line of the console's own log, and a JSON object in a file if there is one. The file is only appended
to, in a thread; an action whose line can't be written is not carried out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.logger import Logger

from pylogd.base.threads import ThreadPool
from pylogd.services.console.answers import PageRequest, Refused

log = Logger()


class ActionLog:
    """Appends a JSON line for each step of an action to a file, in a thread."""

    def __init__(self, reactor: Any, path: Path | None, now_ms: Callable[[], int]) -> None:
        """`path` is the file; None for no file. The log of the process has each action in any case."""
        self._path = path
        self._now_ms = now_ms
        self._pool = ThreadPool(reactor, 1, "console-action-log")

    def stop(self) -> None:
        """End the thread that writes, after the queued lines."""
        self._pool.stop()

    async def write(self, asked: PageRequest, action: str, command: str, outcome: str) -> None:
        """Log an action.

        outcome: `begun`, `done` or an error.

        Raises Refused if it can't be logged.
        """
        host = str(getattr(asked.request.getClientAddress(), "host", ""))
        cluster = asked.parts.get("cluster", "")
        log.info(
            "Action by {user} from {host} on {cluster}: {action}: {outcome} ({command})",
            user=asked.user or "(nobody)", host=host, cluster=cluster, action=action, outcome=outcome, command=command,
        )  # fmt: skip
        if self._path is None:
            return
        line = {
            "time_ms": self._now_ms(), "user": asked.user, "host": host, "cluster": cluster, "action": action,
            "outcome": outcome, "command": command,
        }  # fmt: skip
        try:
            await self._pool.defer(self._append, (json.dumps(line, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            log.error("Can't write the log of actions {path}: {error}", path=self._path, error=error.strerror)
            raise Refused(503, "The action can't be logged, so it is refused; see the console's log.") from None

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        try:
            os.write(file, line)
        finally:
            os.close(file)
