"""Wait until all brokers show a change that one broker has made, so that any broker's next answer includes it.

Strategy: a broker answers the request when it has made the change. The other brokers learn of the change moments later;
until then they answer as before. So each operation that makes such a change ends with a `Probe`, a question whose
answer shows the change. All live brokers are asked at the same time, again and again, until all give the expected
answer.

Rules: the change is made already, so no broker's error is raised here. Nobody waits for a broker that does not answer,
or that refuses the question or can't answer it. After the client's request timeout the wait ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pylogd.base.errors import (
    BrokerUnavailable,
    ClientError,
    ErrorCode,
    KafkaError,
    PylogdError,
    UnsupportedByBroker,
    error_for,
)
from pylogd.client.core.admin.calls import Calls, Question, refresh
from pylogd.client.core.backoff import Backoff
from pylogd.wire.messages import describe_cluster, describe_configs
from pylogd.wire.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic

_ANSWER_SECONDS: Final = 5.0  # after this time a broker counts as one that does not answer
_TRIES: Final = 2  # the tries with a broker to which the connection fails
_AT_ONCE: Final = 100  # the most brokers that are asked at the same time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # the pauses between rounds, in seconds
_CAN_ASK_NOT_TO_CREATE: Final = 4  # since this version of Metadata


def _anything(_: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Probe:
    """A question whose answer shows a change.

    build: makes the request for a version.
    read: returns the part of an answer in which all brokers must agree; None if the broker can't tell yet. Raises
    KafkaError if the broker refuses to answer.
    expected: returns whether this part can be the state after the change.
    """

    api: type[Any]
    build: Callable[[int], Any]
    read: Callable[[Any], object]
    expected: Callable[[Any], bool] = _anything


class _NotShown(ClientError):
    """Some broker does not show the change yet."""

    retriable = True


async def until_shown(calls: Calls, probe: Probe) -> None:
    """Return when all brokers that answer show a change, or after the client's request timeout."""
    failures: Counter[int] = Counter()

    async def attempt() -> None:
        if not calls.metadata.brokers:
            with suppress(PylogdError):
                await refresh(calls)
            if not calls.metadata.brokers:
                raise _NotShown("the brokers are not known")
        nodes = [node for node in sorted(calls.metadata.brokers) if failures[node] < _TRIES]
        shown: list[Any] = []
        for start in range(0, len(nodes), _AT_ONCE):
            asked = nodes[start : start + _AT_ONCE]
            questions = [Question(probe.api, probe.build, node) for node in asked]
            for node, answer in zip(asked, await calls.send_all(questions, _ANSWER_SECONDS), strict=True):
                try:
                    shown.append(probe.read(_answered(answer)))
                    failures[node] = 0
                except BrokerUnavailable:
                    failures[node] += 1
                except PylogdError:
                    failures[node] = _TRIES
        if any(0 < failures[node] < _TRIES for node in nodes):
            raise _NotShown("a broker could not be asked")
        if not all(one is not None and one == shown[0] and probe.expected(one) for one in shown):
            raise _NotShown("not all brokers show the change yet")

    with suppress(_NotShown):
        await calls.call(attempt, calls.request_timeout, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE))


def _answered(answer: Any) -> Any:
    """Return a broker's answer, or raise its error."""
    if isinstance(answer, PylogdError):
        raise answer
    return answer


# Probes for changes of topics


class TopicState(NamedTuple):
    """A broker's answer about a topic.

    leaders: the leader of each partition; empty if the topic does not exist.
    """

    exists: bool
    topic_id: bytes
    leaders: tuple[int, ...]

    @property
    def is_led(self) -> bool:
        """Whether the topic exists, and each of its partitions has a leader."""
        return self.exists and min(self.leaders, default=-1) >= 0


def topics_probe(calls: Calls, names: Iterable[str], expected: Callable[[str, TopicState], bool]) -> Probe:
    """Return the probe that shows the state of topics by name. Topics that may not be described are left out."""
    asked = list(names)

    def build(version: int) -> MetadataRequest:
        if version < _CAN_ASK_NOT_TO_CREATE:
            raise UnsupportedByBroker("the broker may create the topics that it is asked about")
        return calls.metadata.request(asked, version, create=False)

    def read(response: MetadataResponse) -> dict[str, TopicState]:
        return {
            topic.name or "": _state(topic)
            for topic in response.topics
            if topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }

    return Probe(
        MetadataRequest, build, read, lambda found: all(expected(name, state) for name, state in found.items())
    )


def _state(topic: MetadataResponseTopic) -> TopicState:
    if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
        return TopicState(False, bytes(16), ())
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicState(True, bytes(topic.topic_id), tuple(partition.leader_id for partition in partitions))


def created(calls: Calls, names: Iterable[str]) -> Probe:
    """Return the probe that shows that topics exist and have leaders."""
    return topics_probe(calls, names, lambda _, state: state.is_led)


def deleted(calls: Calls, ids: Mapping[str, bytes]) -> Probe:
    """Return the probe that shows that the topics with these names and ids are gone. New topics may have the same
    names.
    """

    def expected(name: str, state: TopicState) -> bool:
        return not state.exists or (any(ids[name]) and state.topic_id != ids[name])

    return topics_probe(calls, ids, expected)


def grown(calls: Calls, topic: str, partitions: int) -> Probe:
    """Return the probe that shows that a topic has this number of partitions, and all of them have leaders."""
    return topics_probe(calls, [topic], lambda _, state: state.is_led and len(state.leaders) >= partitions)


# Probes for changes of settings


def configured(kind: int, name: str, keys: Iterable[str], source: int, removed: Iterable[str]) -> Probe:
    """Return the probe that shows changed settings of a topic, a group or all brokers.

    source: the code of a resource's own settings.
    removed: the keys that return to their defaults.
    """
    wanted, gone = sorted(keys), frozenset(removed)
    resource = describe_configs.DescribeConfigsResource(kind, name, wanted)

    def read(response: describe_configs.DescribeConfigsResponse) -> dict[str, str | None] | None:
        found: dict[str, str | None] = {}
        for result in response.results:
            if not tells(result.error_code):
                return None
            found.update(
                (one.name, one.value) for one in result.configs if one.config_source == source and one.name in wanted
            )
        return found

    return Probe(
        describe_configs.DescribeConfigsRequest, lambda _: describe_configs.DescribeConfigsRequest([resource]), read,
        lambda found: not gone & found.keys(),
    )  # fmt: skip


def labelled() -> Probe:
    """Return the probe that shows the labels of brokers."""

    def read(response: describe_cluster.DescribeClusterResponse) -> dict[int, tuple[str, ...]] | None:
        if not tells(response.error_code):
            return None
        return {broker.broker_id: tuple(broker.labels) for broker in response.brokers}

    messages = describe_cluster
    return Probe(messages.DescribeClusterRequest, lambda _: messages.DescribeClusterRequest(), read)


def cordoning(node: int, cordoned: bool) -> Probe:
    """Return the probe that shows whether a broker takes new replicas."""

    def read(response: describe_cluster.DescribeClusterResponse) -> bool | None:
        if not tells(response.error_code):
            return None
        return next((one.is_cordoned for one in response.brokers if one.broker_id == node), cordoned)

    messages = describe_cluster
    return Probe(messages.DescribeClusterRequest, lambda _: messages.DescribeClusterRequest(), read,
                 lambda found: found is cordoned)  # fmt: skip


def tells(code: int) -> bool:
    """Return whether a broker has answered without an error; False if it may answer later. Raises KafkaError if it
    refuses to answer.
    """
    if code and not error_for(code).retriable:
        raise KafkaError(error_for(code))
    return not code
