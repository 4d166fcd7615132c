"""Sessions of browsers: who logged in, and the token that forms have to carry against cross-site requests.

Rules: ids and tokens are random, and never in a log. Sessions are in memory, bounded in number and in idle time; a
restart of the console ends them all. A login opens a new session, so an id known before it is of no use.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pylogd.console.roles import Role

IDLE_SECONDS: Final = 8 * 3600.0
_MOST: Final = 5000


@dataclass(slots=True)
class Session:
    """A session. user: "" before the login. wanted: where to go after it. pending: the state of a login under way."""

    user: str
    role: Role
    used: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    wanted: str = "/"
    pending: dict[str, str] = field(default_factory=dict, repr=False)

    def is_mine(self, token: str) -> bool:
        """Return whether a form carries this session's token."""
        return hmac.compare_digest(self.token.encode(), token.encode())


class Sessions:
    """The sessions of all browsers by id; the least recently used are dropped when there are too many."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """seconds: a monotonic clock."""
        self._seconds = seconds
        self._known: OrderedDict[str, Session] = OrderedDict()  # the least recently used first

    def find(self, session_id: str) -> Session | None:
        """Return a session that is in use; None for one that is not known, or was idle for too long."""
        session = self._known.get(session_id)
        if session is None:
            return None
        now = self._seconds()
        if now - session.used > IDLE_SECONDS:
            del self._known[session_id]
            return None
        session.used = now
        self._known.move_to_end(session_id)
        return session

    def open(self, user: str, role: Role) -> tuple[str, Session]:
        """Return the id of a new session, and the session."""
        session_id = secrets.token_urlsafe(32)
        session = self._known[session_id] = Session(user, role, self._seconds())
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return session_id, session

    def close(self, session_id: str) -> None:
        """Forget a session, as at a logout. An unknown id is ignored."""
        self._known.pop(session_id, None)
