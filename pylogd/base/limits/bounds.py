"""Bound how many lasting things of a kind, such as groups, clients make: in total, per client, and by unknown clients.

Rules:
- A client may make as many as the bound for one client; all clients together may make as many as the bound for all.
- Clients that have not authenticated may make half of all together; the other half is left to known clients.
- Things that were loaded, or made by the broker itself, count in the total, and in nobody's share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from twisted.logger import Logger

from pylogd.base.limits.log_lines import LimitedLog
from pylogd.base.limits.shares import NOBODY, Share

log = Logger()
_limited = LimitedLog(log, most=10)


class Bound:
    """A bound for one kind of thing. Its owner tells which things are made and removed."""

    def __init__(self, kind: str, settings: str, most: Callable[[], int], most_of_one: Callable[[], int]) -> None:
        """Make the bound.

        kind: the kind of thing, for the log.
        settings: the name of the setting for all; the name of the setting for one principal ends with `.per.principal`.
        """
        self._kind = kind
        self._settings = settings
        self._most = most
        self._most_of_one = most_of_one
        self._made_by: dict[str, Share] = {}
        self._counts: Counter[Share] = Counter()
        self._of_strangers = 0

    def refusal(self, share: Share, total: int) -> str | None:
        """Return why a client may make no further thing, None if it may.

        total: how many things there are.
        """
        most, most_of_one, settings = self._most(), self._most_of_one(), self._settings
        if total >= most:
            return f"{settings}={most} is reached"
        if share.name and self._counts[share] >= most_of_one:
            return f"{settings}.per.principal={most_of_one} is reached by {share.name}"
        if not share.known and self._of_strangers >= max(most // 2, 1):
            return f"half of {settings}={most} is used by clients that have not authenticated"
        return None

    def admits(self, name: str, share: Share, total: int) -> bool:
        """Count one more thing and return True; or log why the client may not make it, and return False."""
        reason = self.refusal(share, total)
        if reason is not None:
            _limited.warn("Refused the new {kind} {name!r}: {reason}. Raise the bound, or find out who makes so many",
                          event=f"{self._kind}s refused", kind=self._kind, name=name[:100], reason=reason)  # fmt: skip
            return False
        if share != NOBODY:
            self.gone(name)
            self._made_by[name] = share
            self._counts[share] += 1
            self._of_strangers += not share.known
        return True

    def maker(self, name: str) -> Share:
        """Return in whose share a thing counts: NOBODY if it was loaded, or made by the broker."""
        return self._made_by.get(name, NOBODY)

    def gone(self, name: str) -> None:
        """Count one thing less."""
        share = self._made_by.pop(name, None)
        if share is not None:
            self._of_strangers -= not share.known
            self._counts[share] -= 1
            if not self._counts[share]:
                del self._counts[share]
