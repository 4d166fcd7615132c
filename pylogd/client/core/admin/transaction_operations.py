"""The administrator's operations on transactions, for all faces (see `operations`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from pylogd.base.errors import ErrorCode, KafkaError
from pylogd.client.core.admin.calls import Calls, refresh, send
from pylogd.client.core.admin.coordinators import ask_coordinator
from pylogd.client.core.admin.offsets import leader_of
from pylogd.client.core.errors import UnsupportedByBroker
from pylogd.client.core.metadata import check, error_text
from pylogd.client.core.model import ActiveProducer, TopicPartition, TransactionDescription, TransactionListing
from pylogd.client.core.producer.transaction_requests import TRANSACTION_KEY
from pylogd.wire.messages import describe_transactions as describe
from pylogd.wire.messages import init_producer_id
from pylogd.wire.messages import list_transactions as listing
from pylogd.wire.messages import write_txn_markers as markers

_DURATION_FROM, _PATTERN_FROM = 1, 2  # versions of ListTransactions
#: A later producer sets its own timeout. Brokers may have lowered the longest timeout meanwhile.
_MOST_TIMEOUT_MS = 60_000


class TransactionOperations:
    """Operations that list, describe and abort transactions."""

    _calls: Calls

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than: float | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids that the brokers coordinate and that all filters select, by id.

        states, producer_ids: select only these; empty selects all.
        longer_than: select only ids whose transaction has been open for longer than this number of seconds.
        pattern: a regular expression (RE2) that the id must match.

        Raises KafkaError; ValueError for an unknown state; UnsupportedByBroker if a broker does not support a filter.
        """
        calls = self._calls
        request = listing.ListTransactionsRequest(list(states), list(producer_ids))

        def fit(version: int) -> None:
            if (longer_than is not None and version < _DURATION_FROM) or (pattern and version < _PATTERN_FROM):
                raise UnsupportedByBroker("the broker does not support this filter of transactions; list all of them")
            request.duration_filter = -1 if longer_than is None else int(longer_than * 1000)
            request.transactional_id_pattern = pattern or None

        async def attempt() -> list[TransactionListing]:
            await refresh(calls, [])
            found = []
            for node in sorted(calls.metadata.brokers):
                response: listing.ListTransactionsResponse = await send(calls, request, node, fit)
                check(response.error_code)
                if response.unknown_state_filters:
                    raise ValueError(f"there is no state {', '.join(response.unknown_state_filters)}")
                found += [
                    TransactionListing(one.transactional_id, one.producer_id, one.transaction_state, node)
                    for one in response.transaction_states
                ]
            return sorted(found)

        return await calls.call(attempt)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return a transactional id and its open transaction, if any. Raises KafkaError: TRANSACTIONAL_ID_NOT_FOUND."""
        request = describe.DescribeTransactionsRequest([transactional_id])
        node, response = await ask_coordinator(
            self._calls, transactional_id, lambda _: request, lambda r: [t.error_code for t in r.transaction_states],
            key_type=TRANSACTION_KEY,
        )  # fmt: skip
        [found] = response.transaction_states
        check(found.error_code, f"transactional id {transactional_id!r}: {error_text(found.error_code)}")
        partitions = (TopicPartition(topic.topic, index) for topic in found.topics for index in topic.partitions)
        return TransactionDescription(
            transactional_id, found.transaction_state, node, found.producer_id, found.producer_epoch,
            found.transaction_timeout_ms, found.transaction_start_time_ms, tuple(sorted(partitions)),
        )  # fmt: skip

    async def hanging_transactions(
        self, producers: Mapping[TopicPartition, Iterable[ActiveProducer]]
    ) -> list[tuple[TopicPartition, ActiveProducer]]:
        """Return the producers with a hanging transaction: it is open in a partition, but its coordinator does not know
        it and will not end it.

        producers: the result of `describe_producers`.
        """
        open_ = [(at, one) for at in sorted(producers) for one in producers[at] if one.transaction_start >= 0]
        if not open_:
            return []
        ids = {one.producer_id for _, one in open_}
        known = {one.producer_id: one.transactional_id for one in await self.list_transactions(producer_ids=ids)}
        described: dict[int, TransactionDescription] = {}
        for producer_id, transactional_id in known.items():
            try:
                described[producer_id] = await self.describe_transaction(transactional_id)
            except KafkaError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
        return [(at, one) for at, one in open_ if not _is_known(at, one, described.get(one.producer_id))]

    async def force_terminate_transaction(self, transactional_id: str) -> None:
        """End the open transaction of a transactional id by its coordinator, in all partitions, and fence its producer.

        The transaction is aborted, unless its outcome is decided: then this waits for its markers. Raises KafkaError:
        TRANSACTIONAL_ID_NOT_FOUND; CONCURRENT_TRANSACTIONS if some partition does not have its marker in time.
        """
        found = await self.describe_transaction(transactional_id)
        request = init_producer_id.InitProducerIdRequest(transactional_id, min(found.timeout, _MOST_TIMEOUT_MS))
        _, response = await ask_coordinator(
            self._calls, transactional_id, lambda _: request, lambda response: [response.error_code],
            key_type=TRANSACTION_KEY,
        )  # fmt: skip
        check(response.error_code, f"transactional id {transactional_id!r}: {error_text(response.error_code)}")

    async def abort_transaction(self, partition: tuple[str, int], producer: ActiveProducer) -> None:
        """Abort a producer's hanging transaction in one partition, by a marker that the leader writes without the
        coordinator. Raises KafkaError: INVALID_PRODUCER_EPOCH if the producer has begun a newer epoch.
        """
        name, index = partition
        marker = markers.WritableTxnMarker(
            producer.producer_id, producer.epoch, False, [markers.WritableTxnMarkerTopic(name, [index])],
            max(producer.coordinator_epoch, 0),
        )  # fmt: skip
        calls = self._calls

        async def attempt() -> None:
            leader = await leader_of(calls, TopicPartition(name, index))
            response: markers.WriteTxnMarkersResponse = await send(
                calls, markers.WriteTxnMarkersRequest([marker]), leader
            )
            for answered in response.markers:
                for topic in answered.topics:
                    for answer in topic.partitions:
                        check(answer.error_code, f"{topic.name}-{index}: {error_text(answer.error_code)}")

        await calls.call(partial(attempt))


def _is_known(partition: TopicPartition, producer: ActiveProducer, found: TransactionDescription | None) -> bool:
    """Whether a transaction that is open in a partition is the one that the coordinator will end."""
    if found is None or not found.is_open or partition not in found.partitions:
        return False
    return producer.epoch <= found.epoch
