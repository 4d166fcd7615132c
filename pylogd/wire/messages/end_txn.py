"""EndTxn, API key 26, versions 0-5. Commits or aborts a transaction.

Generated from protocol/apis/end_txn.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import Message


class EndTxnRequest(Message):
    """The request of EndTxn."""

    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "committed")

    API_KEY: ClassVar[int] = 26
    API_NAME: ClassVar[str] = "EndTxn"

    #: The transactional id.
    transactional_id: str
    #: The producer id.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int
    #: Whether to commit the transaction; false aborts it.
    committed: bool

    def __init__(
        self, transactional_id: str = "", producer_id: int = 0, producer_epoch: int = 0, committed: bool = False
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.committed = committed


class EndTxnResponse(Message):
    """The response of EndTxn."""

    __slots__ = ("throttle_time_ms", "error_code", "producer_id", "producer_epoch")

    API_KEY: ClassVar[int] = 26
    API_NAME: ClassVar[str] = "EndTxn"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int
    #: The producer id for the next transaction; -1 on an error. Versions 5+.
    producer_id: int
    #: The epoch for the next transaction; -1 on an error. Versions 5+.
    producer_epoch: int

    def __init__(
        self, throttle_time_ms: int = 0, error_code: int = 0, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
