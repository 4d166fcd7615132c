"""A request of the core: what to send to which broker, and whom to report the outcome.

The parts of a client that decide (`producer`, `fetcher`, `participation`, `metadata_updater`) return calls; `network`
sends each to the right connection and reports the outcome exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pylogd.errors import PylogdError

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

    `api` is the request's message class and `build(version)` makes the message for the version that was negotiated,
    at most `highest`; it may raise PylogdError. Exactly one of `answered(response, now)` and `failed(error, now)` is
    called. `timeout` in seconds counts from `Network.send`. `purpose` names one of several connections to a broker, so
    that a request whose answer waits for something delays no others; `exclusive` asks for a connection on which nothing
    is in flight. With `expect_reply=False` (Produce with acks=0) `answered(None, now)` follows the write.

    `sent` tells whether bytes were handed to the transport, and `sent_at` when: if not, a failed request had no effect.
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
