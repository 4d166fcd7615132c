"""A request of the core: the message, the broker to send it to, and the callbacks for the outcome.

The parts of a client that decide (`producer`, `fetcher`, `participation`, `metadata_updater`) return calls; `network`
sends each to the right connection and reports the outcome exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pylogd.base.errors import PylogdError

#: A broker by its id, or by (host, port) while only its address is known.
BrokerKey = int | tuple[str, int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker's id and address from an answer, such as the answer to FindCoordinator."""

    node_id: int
    host: str
    port: int


#: A broker's id, an endpoint, or None for any broker.
Target = int | Endpoint | None


@dataclass(slots=True, eq=False)
class Call:
    """A request to send, and callbacks for its outcome.

    Exactly one of `answered(response, now)` and `failed(error, now)` is called.
    api: the request's message class.
    build: makes the message for the version that was negotiated, at most `highest`; may raise PylogdError.
    timeout: in seconds, counted from `Network.send`.
    purpose: names one of several connections to a broker, so that a request with a late answer delays no others.
    exclusive: whether to use a connection on which nothing is in flight.
    expect_reply: False for Produce with acks=0: `answered(None, now)` is called after the write.

    sent: whether bytes were handed to the transport; if not, a failed request had no effect.
    sent_at: when they were.
    """

    api: type[Any]
    build: Callable[[int], Any]
    answered: Callable[[Any, float], None]
    failed: Callable[[PylogdError, float], None]
    timeout: float
    target: Target = None
    purpose: str = ""
    highest: int | None = None
    expect_reply: bool = True
    exclusive: bool = False
    sent: bool = field(default=False, init=False)
    sent_at: float = field(default=0.0, init=False)
    deadline: float = field(default=0.0, init=False)
