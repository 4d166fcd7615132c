"""Faults for brokers, to show that the checker finds them: PYLOGD_PLANTED_FAULT names one of `FAULTS`.

Python imports this module at its start if its folder is in PYTHONPATH.
"""

from __future__ import annotations

import os
import random
from typing import Any


def epoch_check() -> None:
    """Leave out the checks of a producer's epoch in the log, and of its transaction at the coordinator."""
    from pylogd.base.errors import ErrorCode  # noqa: PLC0415
    from pylogd.broker.log.producers import Producers  # noqa: PLC0415
    from pylogd.broker.replica.waiting import then  # noqa: PLC0415
    from pylogd.broker.transactions import verifier  # noqa: PLC0415

    check = Producers.check

    def lenient(self: Any, producer_id: int, epoch: int, *rest: Any) -> Any:
        known = self.by_id.get(producer_id)
        return None if known is not None and epoch < known.epoch else check(self, producer_id, epoch, *rest)

    Producers.check = lenient  # type: ignore[assignment, method-assign]
    ask = verifier.TransactionVerifier._ask_here

    def yes(self: Any, name: str, producer_id: int, epoch: int, partitions: Any, add: bool) -> Any:
        answer = dict.fromkeys(partitions, ErrorCode.NONE)
        return then(ask(self, name, producer_id, epoch, partitions, add), lambda _: answer)

    verifier.TransactionVerifier._ask_here = yes  # type: ignore[method-assign]


def lost_marker() -> None:
    """Answer some markers as written that are not."""
    from pylogd.base.errors import ErrorCode  # noqa: PLC0415
    from pylogd.broker.api import write_txn_markers  # noqa: PLC0415

    write = write_txn_markers._write

    async def forgetful(context: Any, batch: bytes, marker: Any, topic: str, answer: Any, pending: Any) -> None:
        if topic.startswith("__") or random.random() > 0.05:
            await write(context, batch, marker, topic, answer, pending)
        else:
            answer.error_code = ErrorCode.NONE

    write_txn_markers._write = forgetful


def stable_offset() -> None:
    """Let readers of committed records read up to the high watermark."""
    from pylogd.broker.log.transactions import UnstableTransactions  # noqa: PLC0415

    UnstableTransactions.stable_end = lambda self, high_watermark: high_watermark  # type: ignore[method-assign]


def stable_offset_back() -> None:
    """Let the last stable offset go back now and then."""
    from pylogd.broker.log.transactions import UnstableTransactions  # noqa: PLC0415

    stable = UnstableTransactions.stable_end

    def wavering(self: Any, high_watermark: int) -> int:
        end = stable(self, high_watermark)
        return max(end - 10, 0) if random.random() < 0.02 else end

    UnstableTransactions.stable_end = wavering  # type: ignore[method-assign]


def late_write() -> None:
    """Acknowledge batches of transactions before they are written: every other one, behind the next one."""
    from pylogd.broker.log.append.result import AppendResult  # noqa: PLC0415
    from pylogd.broker.replica.manager import ReplicaManager  # noqa: PLC0415
    from pylogd.wire.records import parse_header  # noqa: PLC0415

    append = ReplicaManager.append
    kept: dict[Any, tuple[int, tuple[Any, ...], dict[str, Any]]] = {}

    def hesitant(self: Any, partition: Any, records: Any, *rest: Any, **named: Any) -> Any:
        producer = parse_header(records).producer_id
        earlier = kept.pop(partition, None)
        if partition.topic == "mix" and not named.get("own") and earlier is None:
            kept[partition] = producer, (bytes(records), *rest), named
            end = partition.high_watermark
            return AppendResult(end, end - 1, -1, 0)
        if earlier is not None and (producer == earlier[0] or named.get("own")):
            append(self, partition, *earlier[1], **earlier[2])
            earlier = None
        result = append(self, partition, records, *rest, **named)
        if earlier is not None:
            append(self, partition, *earlier[1], **earlier[2])
        return result

    ReplicaManager.append = hesitant  # type: ignore[method-assign]


def aborted_offsets() -> None:
    """Let the offsets of aborted transactions count."""
    from pylogd.broker.groups.group_offsets import GroupOffsets  # noqa: PLC0415

    end = GroupOffsets.end
    GroupOffsets.end = lambda self, key, *, committed: end(self, key, committed=True)  # type: ignore[method-assign]


FAULTS = {
    fault.__name__: fault
    for fault in (epoch_check, lost_marker, stable_offset, stable_offset_back, late_write, aborted_offsets)
}

if (planted := os.environ.get("PYLOGD_PLANTED_FAULT")) is not None:
    FAULTS[planted]()
