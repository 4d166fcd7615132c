"""InitProducerId, API key 22, versions 0-5. Gets a producer id and epoch for an idempotent or transactional producer.

Generated from protocol/apis/init_producer_id.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import Message


class InitProducerIdRequest(Message):
    """The request of InitProducerId."""

    __slots__ = ("transactional_id", "transaction_timeout_ms", "producer_id", "producer_epoch")

    API_KEY: ClassVar[int] = 22
    API_NAME: ClassVar[str] = "InitProducerId"

    #: The transactional id; null if the producer uses no transactions.
    transactional_id: str | None
    #: After how many idle milliseconds the broker aborts a transaction.
    transaction_timeout_ms: int
    #: The producer id that the client has; -1 for none. Versions 3+.
    producer_id: int
    #: The epoch that the client has; -1 for none. Versions 3+.
    producer_epoch: int

    def __init__(
        self,
        transactional_id: str | None = "",
        transaction_timeout_ms: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        self.transactional_id = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class InitProducerIdResponse(Message):
    """The response of InitProducerId."""

    __slots__ = ("throttle_time_ms", "error_code", "producer_id", "producer_epoch")

    API_KEY: ClassVar[int] = 22
    API_NAME: ClassVar[str] = "InitProducerId"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The producer id to use; -1 on an error.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int

    def __init__(
        self, throttle_time_ms: int = 0, error_code: int = 0, producer_id: int = -1, producer_epoch: int = 0
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
