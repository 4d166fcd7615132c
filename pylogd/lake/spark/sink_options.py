"""Parse and check the options of the sink, by the same rules as in `options`.

Must not know: brokers, Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pylogd.client.core.producer.options import ProducerOptions
from pylogd.lake.spark.errors import OptionError
from pylogd.lake.spark.options import ASYNC_PROGRESS, RawOptions, admin_arguments

#: Kafka's producer settings that this client has: the name of the argument, and the parser of the value.
_PASSED: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "client.id": ("client_id", str),
    "acks": ("acks", lambda text: text if text == "all" else {-1: "all", 0: 0, 1: 1}[int(text)]),
    "compression.type": ("compression", str.lower),
    "linger.ms": ("linger_ms", int),
    "batch.size": ("batch_bytes", int),
    "buffer.memory": ("buffer_memory", int),
    "enable.idempotence": ("idempotence", lambda text: {"true": True, "false": False}[text.lower()]),
    "request.timeout.ms": ("request_timeout", lambda text: int(text) / 1000),
    "delivery.timeout.ms": ("delivery_timeout", lambda text: int(text) / 1000),
    "max.block.ms": ("max_block", lambda text: int(text) / 1000),
    "transaction.timeout.ms": ("transaction_timeout", lambda text: int(text) / 1000),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink.

    topic: the topic of all rows; None if a column names it.
    transactional: the transactional id with which each epoch is written in one transaction; None to write at least
    once.
    """

    bootstrap: str
    topic: str | None
    include_headers: bool
    client: Mapping[str, Any]
    transactional: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkOptions:
        """Parse the options of a sink. Raises OptionError."""
        given = RawOptions(options)
        client = given.client(_PASSED)
        transactional = given.text("transactional")
        include_headers = bool(given.flag("includeHeaders", False))
        found = cls(given.bootstrap(), given.text("topic"), include_headers, client, transactional)
        if transactional is not None:
            if given.flag(ASYNC_PROGRESS, False):
                raise OptionError(
                    f"option 'transactional' can't be combined with {ASYNC_PROGRESS}: Spark would repeat epochs with "
                    "other rows"
                )
            try:
                ProducerOptions.of(None, found.producer())
            except ValueError as error:
                raise OptionError(f"option 'transactional': {error}") from None
        return found

    def producer(self) -> dict[str, Any]:
        """Return the arguments of the producer."""
        return dict(self.client) if self.transactional is None else {
            **self.client, "transactional_id": self.transactional
        }  # fmt: skip

    def admin(self) -> dict[str, Any]:
        """Return the arguments of an administrator with the same connections."""
        return admin_arguments(self.client)
