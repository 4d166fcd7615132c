"""Users beside a crowd, each on one connection: they push metrics, look up time stamps, or go on with a fetch session.

Each is what a `Probe` does again and again. It raises if the broker does not serve it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pylogd.base.errors import ErrorCode
from pylogd.wire.messages.fetch import FetchRequest
from pylogd.wire.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from pylogd.wire.messages.push_telemetry import PushTelemetryRequest
from tests.extreme.access import Access
from tests.extreme.neighbour import TOPIC
from tests.extreme.state import STAMP
from tests.rawclient import ConnectionClosed, RawClient
from tests.strangers.crowds import many_metrics, new_session, search

_PATIENCE: Final = 30.0


class User:
    """A user whose connection is made anew if it has ended."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client: RawClient | None = None

    def work(self) -> None:
        """Do what this user does."""
        try:
            if self._client is None:
                self._client = self._access.connect(_PATIENCE)
                self.begin(self._client)
            self.ask(self._client)
        except (OSError, ConnectionClosed, AssertionError):
            if self._client is not None:
                self._client.close()
            self._client = None
            raise

    def begin(self, client: RawClient) -> None:
        """Do what comes first on a connection."""

    def ask(self, client: RawClient) -> None:
        """Do what is done again and again. Raises AssertionError if the broker does not serve it."""
        raise NotImplementedError


class Pusher(User):
    """Pushes metrics, each time as another client: each may push once in some minutes."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._push = many_metrics()

    def ask(self, client: RawClient) -> None:
        """Ask what to push, and push."""
        asked = client.request(GetTelemetrySubscriptionsRequest(), 0)
        _expect(asked.error_code, "GetTelemetrySubscriptions")
        push = PushTelemetryRequest(asked.client_instance_id, asked.subscription_id, True, *self._push)
        _expect(client.request(push, 0).error_code, "PushTelemetry")


class Searcher(User):
    """Looks up a time stamp in compressed batches."""

    def ask(self, client: RawClient) -> None:
        """Look one up."""
        (found,) = client.request(search(STAMP + 1), 7).topics[0].partitions
        _expect(found.error_code, "ListOffsets")
        assert found.offset > 0, found


class SessionUser(User):
    """Goes on with a fetch session for as long as its connection lives."""

    def begin(self, client: RawClient) -> None:
        """Open the session."""
        answer = client.request(new_session(TOPIC, 1), 11)
        _expect(answer.error_code, "Fetch, to open a session")
        assert answer.session_id, "no session was given"
        self._session, self._epoch = answer.session_id, 1

    def ask(self, client: RawClient) -> None:
        """Fetch what has changed."""
        request = FetchRequest(
            replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=0, session_id=self._session, session_epoch=self._epoch
        )
        answer = client.request(request, 11)
        _expect(answer.error_code, "Fetch in a session")
        assert answer.session_id == self._session, "the session was closed"
        self._epoch += 1


def works_of(access: Access) -> dict[str, Callable[[], object]]:
    """Return what the users do, by name."""
    return {"pushed metrics": Pusher(access).work, "searches": Searcher(access).work,
            "fetch session": SessionUser(access).work}  # fmt: skip


def _expect(found: int, request: str) -> None:
    assert not found, f"{request} was answered {ErrorCode(found).name}"
