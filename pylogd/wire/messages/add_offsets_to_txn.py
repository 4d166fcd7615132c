"""AddOffsetsToTxn, API key 25, versions 0-4. Adds the offsets of a group to a transaction, before the first
TxnOffsetCommit.

Generated from protocol/apis/add_offsets_to_txn.json by tools/generate_messages.py: edit those instead.
"""

from __future__ import annotations

from typing import ClassVar

from pylogd.wire.values import Message


class AddOffsetsToTxnRequest(Message):
    """The request of AddOffsetsToTxn."""

    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "group_id")

    API_KEY: ClassVar[int] = 25
    API_NAME: ClassVar[str] = "AddOffsetsToTxn"

    #: The transactional id.
    transactional_id: str
    #: The producer id.
    producer_id: int
    #: The epoch of the producer id.
    producer_epoch: int
    #: The group whose offsets the transaction will commit.
    group_id: str

    def __init__(
        self, transactional_id: str = "", producer_id: int = 0, producer_epoch: int = 0, group_id: str = ""
    ) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.group_id = group_id


class AddOffsetsToTxnResponse(Message):
    """The response of AddOffsetsToTxn."""

    __slots__ = ("throttle_time_ms", "error_code")

    API_KEY: ClassVar[int] = 25
    API_NAME: ClassVar[str] = "AddOffsetsToTxn"

    #: Milliseconds that the broker held the request back because of a quota; 0 if it did not.
    throttle_time_ms: int
    #: The error code; 0 if all went well.
    error_code: int

    def __init__(self, throttle_time_ms: int = 0, error_code: int = 0) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
