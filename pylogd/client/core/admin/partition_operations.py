"""The administrator's operations on replicas, for all faces (see `operations`): elections, reassignments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pylogd.base.errors import KafkaError, error_for
from pylogd.client.core.admin.calls import Calls, ask, change, send
from pylogd.client.core.admin.offsets import leader_of
from pylogd.client.core.admin.visibility import Probe, TopicState, configured, tells, topics_probe, until_shown
from pylogd.client.core.metadata import check
from pylogd.client.core.model import ActiveProducer, EligibleReplicas, Reassignment, TopicPartition
from pylogd.wire.messages import alter_partition_reassignments as alter
from pylogd.wire.messages import describe_producers as producers
from pylogd.wire.messages import describe_topic_partitions as describe
from pylogd.wire.messages import elect_leaders as elect
from pylogd.wire.messages import list_partition_reassignments as listing

PartitionOutcome = dict[TopicPartition, KafkaError | None]
_PREFERRED, _UNCLEAN = 0, 1
_PAGE = 2000  # the most partitions in an answer
_TOPIC, _OWN, _LABEL = 2, 1, "placement.label"  # the topics' setting for labels, and its codes


class PartitionOperations:
    """Operations on the leaders and replicas of partitions."""

    _calls: Calls
    _timeout_ms: int

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> PartitionOutcome:
        """Elect the preferred replica as the leader of partitions, or of all partitions with None.

        Return the outcome of each partition; with None, of each partition that needed an election.

        unclean: whether to elect any live replica where a partition has no leader; committed records may be lost.
        """
        asked = None
        if partitions is not None:
            asked = [elect.TopicPartitions(topic, indexes) for topic, indexes in _by_topic(partitions).items()]
        kind = _UNCLEAN if unclean else _PREFERRED
        request = elect.ElectLeadersRequest(kind, asked, timeout_ms=self._timeout_ms)
        response: elect.ElectLeadersResponse = await change(self._calls, request, lambda r: [r.error_code])
        check(response.error_code)
        outcome = {
            TopicPartition(topic.topic, one.partition_id): _error(one.error_code, one.error_message)
            for topic in response.replica_election_results
            for one in topic.partition_result
        }
        elected = [at for at, error in outcome.items() if error is None]
        if elected:
            await until_shown(self._calls, _led(self._calls, elected))
        return outcome

    async def eligible_replicas(self, topics: Iterable[str]) -> dict[TopicPartition, EligibleReplicas]:
        """Return the eligible leader replicas (KIP-966) of the partitions of topics; partitions without any are left
        out. Raises KafkaError; UnsupportedByBroker if the broker does not support them.
        """
        found: dict[TopicPartition, EligibleReplicas] = {}
        cursor = None
        asked = [describe.TopicRequest(name) for name in sorted(topics)]
        while asked:
            request = describe.DescribeTopicPartitionsRequest(asked, _PAGE, cursor)
            response: describe.DescribeTopicPartitionsResponse = await ask(self._calls, request)
            for topic in response.topics:
                check(topic.error_code, topic.name)
                for one in topic.partitions:
                    eligible = tuple(one.eligible_leader_replicas or ()), tuple(one.last_known_elr or ())
                    if any(eligible):
                        found[TopicPartition(topic.name or "", one.partition_index)] = EligibleReplicas(*eligible)
            after = response.next_cursor
            if after is None:
                break
            cursor = describe.Cursor(after.topic_name, after.partition_index)
        return found

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """Return the idempotent producers that the leader of each partition remembers, by producer id. Raises
        KafkaError for the first partition that has an error.
        """
        wanted = [TopicPartition(*one) for one in partitions]
        found: dict[TopicPartition, list[ActiveProducer]] = {}

        async def attempt() -> None:
            by_leader: dict[int, list[tuple[str, int]]] = {}
            for one in wanted:
                if one not in found:
                    by_leader.setdefault(await leader_of(self._calls, one), []).append(one)
            for leader, led in by_leader.items():
                named = [producers.TopicRequest(topic, indexes) for topic, indexes in _by_topic(led).items()]
                response: producers.DescribeProducersResponse = await send(
                    self._calls, producers.DescribeProducersRequest(named), leader
                )
                found.update(_producers(response))

        await self._calls.call(attempt)
        return found

    async def reassign(
        self,
        targets: Mapping[tuple[str, int], Sequence[int] | None] | Mapping[TopicPartition, Sequence[int] | None],
        *,
        latest_wait: float | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> PartitionOutcome:
        """Start to move each partition's replicas to these brokers, the preferred leader first. None cancels the move
        in progress and restores the earlier replicas. Return the outcome of each partition.

        `latest_wait` (only pylogd): new replicas do not copy existing records. They start at the latest offset. They
        join the in-sync set when every consumer group has read up to that offset, or after `latest_wait` seconds.

        `labels` (only pylogd): new labels of topics, by name; "" for no label. A topic's label changes together with
        the moves. All of its partitions must be on, or be moved to, brokers that carry the label. Otherwise each of
        them has an error, none is moved, and the label is unchanged.
        """
        topics = [
            alter.ReassignableTopic(topic, [
                alter.ReassignablePartition(index, None if brokers is None else list(brokers))
                for (name, index), brokers in targets.items() if name == topic
            ], placement_label=(labels or {}).get(topic))
            for topic in _by_topic(targets)
        ]  # fmt: skip
        request = alter.AlterPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=topics)
        if latest_wait is not None:
            request.latest_wait_ms = int(latest_wait * 1000)
        response: alter.AlterPartitionReassignmentsResponse = await change(
            self._calls, request, lambda r: [r.error_code]
        )
        check(response.error_code, response.error_message)
        outcome = {
            TopicPartition(topic.name, one.partition_index): _error(one.error_code, one.error_message)
            for topic in response.responses
            for one in topic.partitions
        }
        begun = [at for at, error in outcome.items() if error is None]
        if begun:
            await until_shown(self._calls, _moving(begun))
        for name in {at.topic for at in begun} & set(labels or ()):
            await until_shown(self._calls, configured(_TOPIC, name, [_LABEL], _OWN, ()))
        return outcome

    async def reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress, of all partitions or of some."""
        asked = None
        if partitions is not None:
            named = _by_topic(partitions)
            asked = [listing.ListPartitionReassignmentsTopics(topic, indexes) for topic, indexes in named.items()]
        request = listing.ListPartitionReassignmentsRequest(self._timeout_ms, asked)
        response: listing.ListPartitionReassignmentsResponse = await ask(self._calls, request)
        check(response.error_code, response.error_message)
        return {
            TopicPartition(topic.name, one.partition_index): Reassignment(
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in response.topics
            for one in topic.partitions
        }


def _led(calls: Calls, partitions: Iterable[TopicPartition]) -> Probe:
    """Return the probe that shows elected leaders."""
    wanted = _by_topic(partitions)

    def expected(name: str, state: TopicState) -> bool:
        return all(index < len(state.leaders) and state.leaders[index] >= 0 for index in wanted.get(name, ()))

    return topics_probe(calls, wanted, expected)


def _moving(partitions: Iterable[TopicPartition]) -> Probe:
    """Return the probe that shows that reassignments have begun, have ended, or were cancelled."""
    asked = [listing.ListPartitionReassignmentsTopics(name, indexes) for name, indexes in _by_topic(partitions).items()]
    request = listing.ListPartitionReassignmentsRequest(topics=asked)

    def read(
        response: listing.ListPartitionReassignmentsResponse,
    ) -> dict[TopicPartition, tuple[tuple[int, ...], ...]] | None:
        if not tells(response.error_code):
            return None
        return {
            TopicPartition(topic.name, one.partition_index): (
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in response.topics
            for one in topic.partitions
        }  # fmt: skip

    return Probe(listing.ListPartitionReassignmentsRequest, lambda _: request, read)


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found


def _producers(response: producers.DescribeProducersResponse) -> Iterator[tuple[TopicPartition, list[ActiveProducer]]]:
    for topic in response.topics:
        for answer in topic.partitions:
            check(answer.error_code, answer.error_message)
            yield TopicPartition(topic.name, answer.partition_index), sorted(map(_active, answer.active_producers))


def _active(one: producers.ProducerState) -> ActiveProducer:
    return ActiveProducer(
        one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp, one.coordinator_epoch,
        one.current_txn_start_offset, one.awaited_until_ms,
    )  # fmt: skip


def _error(code: int, message: str | None) -> KafkaError | None:
    return KafkaError(error_for(code), message) if code else None
