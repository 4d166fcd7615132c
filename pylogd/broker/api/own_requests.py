"""Pass requests of this broker to itself directly to the handlers that serve other brokers."""

from __future__ import annotations

from typing import Any

from pylogd.broker.api.context import BrokerParts, OwnContext
from pylogd.broker.api.registry import REGISTRATIONS
from pylogd.broker.replica.waiting import then
from pylogd.wire import schema


def ask_self(broker: BrokerParts, message: Any) -> Any:
    """Return the response to a request of a broker to itself, or a Deferred of it."""
    registered = REGISTRATIONS[message.API_KEY]
    answer = registered.handler(OwnContext(broker, registered.last, registered.name), message)

    def decoded(response: Any) -> Any:
        if not isinstance(response, bytes):
            return response
        return schema.response_codec(registered.api_key, registered.last).decode(memoryview(response))

    return then(answer, decoded)
