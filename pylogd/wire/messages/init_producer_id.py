"""InitProducerId, API key 22, versions 0-5. Gets a producer id and epoch for an idempotent or transactional producer.

Generated from protocol/apis/init_producer_id.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(slots=True)
class InitProducerIdRequest:
    """The request of InitProducerId."""

    API_KEY: ClassVar[int] = 22
    API_NAME: ClassVar[str] = "InitProducerId"

    #: The transactional id; null if the producer uses no transactions.
    transactional_id: str | None = ""
    #: After how many idle milliseconds the broker aborts a transaction.
    transaction_timeout_ms: int = 0
    #: The producer id that the client has; -1 for none. Versions 3+.
    producer_id: int = -1
    #: The epoch that the client has; -1 for none. Versions 3+.
    producer_epoch: int = -1


@dataclass(slots=True)
class InitProducerIdResponse:
    """The response of InitProducerId."""

    API_KEY: ClassVar[int] = 22
    API_NAME: ClassVar[str] = "InitProducerId"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int = 0
    #: The error code; 0 if all went well.
    error_code: int = 0
    #: The producer id to use; -1 on an error.
    producer_id: int = -1
    #: The epoch of the producer id.
    producer_epoch: int = 0
