"""Sessions of browsers: the user, and the token that forms must carry against cross-site requests.

Strategy: sessions of logged-in users are in memory, with limits of number and idle time. A browser without a login has
its data in its cookie, signed with a key of this process: a token for its form, the page to show after the login, and
the state of a login in progress. So requests of unknown users take no memory, and end no other session.

Rules: ids and tokens are random, and never in a log. If there are too many sessions, the user with the most sessions
loses the one that has been idle longest. A restart of the console ends all sessions. A login opens a new session, so an
id that was known before the login is useless.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pylogd.base.limits.shares import Places
from pylogd.services.console.roles import Role

IDLE_SECONDS: Final = 8 * 3600.0
_MOST: Final = 5000
_MOST_WANTED: Final = 1000  # the most characters of an address in a cookie
_SIGNED: Final = "~"  # the prefix of cookies without a login, which no random id has


@dataclass(slots=True)
class Session:
    """A session.

    user: the user's name; "" before the login.
    wanted: the page to show after the login.
    pending: the state of a login in progress.

    used: the time of its last use; without a login, of its beginning.
    session_id: the id in its cookie after the login.
    """

    user: str
    role: Role
    used: float
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    wanted: str = "/"
    pending: dict[str, str] = field(default_factory=dict, repr=False)
    session_id: str = field(default="", repr=False)

    def is_mine(self, token: str) -> bool:
        """Return whether a form carries this session's token."""
        return hmac.compare_digest(self.token.encode(), token.encode())


class Sessions:
    """The sessions of all browsers, by the value of their cookies."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """`seconds` is a monotonic clock."""
        self._seconds = seconds
        self._key = secrets.token_bytes(32)
        self._known: dict[str, Session] = {}
        self._places: Places[str] = Places()  # each user has a share

    def __len__(self) -> int:
        return len(self._known)

    def find(self, cookie: str, role: Role = Role.NONE) -> Session | None:
        """Return the session of a cookie; None if it is unknown, or was idle for too long.

        role: the role of browsers without a login.
        """
        now = self._seconds()
        if cookie.startswith(_SIGNED):
            return self._signed(cookie, role, now)
        session = self._known.get(cookie)
        if session is None:
            return None
        if now - session.used > IDLE_SECONDS:
            self.close(cookie)
            return None
        session.used = now
        self._places.leave(cookie)
        self._places.enter(cookie, session.user)
        return session

    def open(self, user: str, role: Role) -> Session:
        """Return a new session.

        user: the user's name; "" for a browser without a login, whose session is only in its cookie.
        """
        session = Session(user, role, self._seconds())
        if user:
            session.session_id = secrets.token_urlsafe(32)
            if len(self._known) >= _MOST:
                self.close(self._places.gives_way())
            self._known[session.session_id] = session
            self._places.enter(session.session_id, user)
        return session

    def cookie(self, session: Session) -> str:
        """Return the value of the cookie of a session."""
        if session.user:
            return session.session_id
        state = [session.token, session.used, session.wanted[:_MOST_WANTED], session.pending]
        text = base64.urlsafe_b64encode(json.dumps(state, separators=(",", ":")).encode()).decode().rstrip("=")
        return f"{_SIGNED}{text}.{self._sign(text)}"

    def close(self, session_id: str) -> None:
        """Forget a session, such as at a logout. An unknown id is ignored."""
        if self._known.pop(session_id, None) is not None:
            self._places.leave(session_id)

    def _signed(self, cookie: str, role: Role, now: float) -> Session | None:
        text, _, signature = cookie.removeprefix(_SIGNED).rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return None
        token, begun, wanted, pending = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return Session("", role, begun, token, wanted, pending) if now - begun <= IDLE_SECONDS else None

    def _sign(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()
