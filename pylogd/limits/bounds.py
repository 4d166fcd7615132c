"""Bound how many things of a kind clients make that stay, such as groups: in all, of one client, and of strangers.

Rules:
- A client may have as many as the bound for one, and all together as many as the bound for all.
- Clients that have not said who they are may have half of all together: the other half is left to known clients.
- What was loaded, or made by the broker itself, counts in all, and in nobody's share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from twisted.logger import Logger

from pylogd.limits.log_lines import LimitedLog
from pylogd.limits.shares import NOBODY, Share

log = Logger()
_limited = LimitedLog(log, most=10)


class Bound:
    """A bound for one kind of thing. Its owner says what is made and what goes."""

    def __init__(self, kind: str, settings: str, most: Callable[[], int], most_of_one: Callable[[], int]) -> None:
        """kind: for the log. settings: the name of the setting for all; that for one principal ends with
        `.per.principal`.
        """
        self._kind = kind
        self._settings = settings
        self._most = most
        self._most_of_one = most_of_one
        self._made_by: dict[str, Share] = {}
        self._counts: Counter[Share] = Counter()
        self._of_strangers = 0

    def refusal(self, share: Share, total: int) -> str | None:
        """Return why a client may make no further thing, None if it may. total: how many there are."""
        most, most_of_one, settings = self._most(), self._most_of_one(), self._settings
        if total >= most:
            return f"{settings}={most} is reached"
        if share.name and self._counts[share] >= most_of_one:
            return f"{settings}.per.principal={most_of_one} is reached by {share.name}"
        if not share.known and self._of_strangers >= max(most // 2, 1):
            return f"half of {settings}={most} is used by clients that have not authenticated"
        return None

    def admits(self, name: str, share: Share, total: int) -> bool:
        """Count one more and return True; or log why the client may not make it, and return False."""
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
        """Return in whose share something counts: NOBODY where it was loaded, or made by the broker."""
        return self._made_by.get(name, NOBODY)

    def gone(self, name: str) -> None:
        """Count one less."""
        share = self._made_by.pop(name, None)
        if share is not None:
            self._of_strangers -= not share.known
            self._counts[share] -= 1
            if not self._counts[share]:
                del self._counts[share]
