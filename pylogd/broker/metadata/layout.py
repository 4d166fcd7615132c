"""The contents of the nodes in a metadata store (`store.paths` has the paths). They are those of Kafka's ZooKeeper
tree.

So tools for Kafka can read them. Particular to pylogd are: `/changes`, through which brokers learn of each other's
writes (`changes`); one state node for each topic, below the topic's, where Kafka has one for each partition, so that a
topic is read and written at once; `/brokers/epochs` and `/brokers/incarnations`. A state node is named by the topic's
id, so that a write to a topic that was deleted and created again meanwhile fails.

Every node holds a JSON object with a `version`.
Must not know: stores, look-ups.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pylogd.broker.metadata.image import (
    NO_LEADER,
    Broker,
    Endpoint,
    FeatureRange,
    Outages,
    PartitionState,
    ReplicaKey,
    id_from_text,
    id_to_text,
)
from pylogd.store.errors import CorruptMetadata
from pylogd.store.paths import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    BROKER_EPOCHS,
    CLUSTER_ID,
    CONTROLLER,
    CONTROLLER_EPOCH,
    INCARNATIONS,
    PRODUCER_IDS,
    REGISTRATIONS,
    TOPIC_CONFIGS,
    TOPICS,
)

#: The leader, leader epoch, in-sync set and partition epoch of a partition that is missing in the state node.
_NO_STATE: Final[tuple[int, int, list[int], int]] = (NO_LEADER, 0, [], -1)
_INTEGER: Final = frozenset({int})
#: The format of a usual state, by the number of brokers in its in-sync set.
_STATE_FORMATS: Final = [f'"%d":[%d,%d,[{",".join(["%d"] * in_sync)}],%d]' for in_sync in range(8)]


def state_path(name: str, topic_id: bytes) -> str:
    """Return the path of the node of the states of a topic's partitions."""
    return f"{TOPICS}/{name}/state-{id_to_text(topic_id)}"


def topic_of_path(path: str) -> str | None:
    """Return the name of the topic to which a node belongs; None if it belongs to none."""
    for parent in (TOPICS, TOPIC_CONFIGS):
        if path.startswith(f"{parent}/"):
            return path[len(parent) + 1 :].partition("/")[0]
    return None


def topic_config_path(name: str) -> str:
    """Return the path of the node of a topic's settings."""
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config_path(broker: int | None) -> str:
    """Return the path of the node of a broker's settings; None means those of all brokers."""
    return f"{BROKER_CONFIGS}/{ALL_BROKERS if broker is None else broker}"


class Assignment(NamedTuple):
    """The content of a topic's node: its id, and the replicas of each partition.

    The maps have an entry for each partition with a reassignment in progress; see `PartitionState`.
    """

    topic_id: bytes
    replicas: Sequence[tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    removing: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    latest_until_ms: Mapping[int, int] = MappingProxyType({})

    @classmethod
    def of(cls, topic_id: bytes, partitions: Sequence[PartitionState]) -> Assignment:
        """Return the part of partitions' states that is kept in the topic's node."""
        return cls(
            topic_id,
            [state.replicas for state in partitions],
            {state.index: state.adding for state in partitions if state.adding},
            {state.index: state.removing for state in partitions if state.removing},
            {state.index: state.latest_until_ms for state in partitions if state.latest_until_ms is not None},
        )


def encode_topic(assignment: Assignment) -> bytes:
    """Encode a topic's node."""
    document: dict[str, Any] = {
        "version": 3,
        "topic_id": id_to_text(assignment.topic_id),
        "partitions": _by_index(enumerate(assignment.replicas)),
        "adding_replicas": _by_index(assignment.adding.items()),
        "removing_replicas": _by_index(assignment.removing.items()),
    }
    if assignment.latest_until_ms:
        document["latest_until_ms"] = {str(index): time for index, time in assignment.latest_until_ms.items()}
    return _encode(document)


def decode_topic(path: str, data: bytes) -> Assignment:
    """Decode a topic's node. Raises `CorruptMetadata`."""
    document = _decode(path, data)
    try:
        partitions = document["partitions"]
        seen: dict[tuple[int, ...], tuple[int, ...]] = {}  # partitions with the same replicas share the tuple
        found = (partitions[str(index)] for index in range(len(partitions)))
        replicas = [seen.get(tuple(one)) or seen.setdefault(tuple(one), _ids(one)) for one in found]
        if not replicas or not all(replicas):
            raise ValueError("a topic has partitions, and they have replicas")
        return Assignment(
            id_from_text(document["topic_id"]),
            replicas,
            {int(index): _ids(brokers) for index, brokers in (document.get("adding_replicas") or {}).items()},
            {int(index): _ids(brokers) for index, brokers in (document.get("removing_replicas") or {}).items()},
            {int(index): int(time) for index, time in (document.get("latest_until_ms") or {}).items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def encode_states(controller_epoch: int, partitions: Sequence[PartitionState]) -> bytes:
    """Encode a topic's state node.

    controller_epoch: the epoch of the last controller that wrote it.

    The text is formatted directly: a JSON encoder takes twice as long, and a controller encodes 100,000 states when
    brokers fail.
    """
    formats = _STATE_FORMATS
    texts = [
        formats[len(state.isr)] % (state.index, state.leader, state.leader_epoch, *state.isr, state.partition_epoch)
        if state.last_known_leader == NO_LEADER
        and not (state.elr or state.last_known_elr)
        and len(state.isr) < len(formats)
        else _encode_state(state)
        for state in partitions
    ]
    return b'{"version":1,"controller_epoch":%d,"partitions":{%s}}' % (controller_epoch, ",".join(texts).encode())


def _encode_state(state: PartitionState) -> str:
    """Encode a state. Its last field is about replicas that are not in sync; most states do not have it."""
    fields: list[Any] = [state.leader, state.leader_epoch, state.isr, state.partition_epoch]
    if state.last_known_leader != NO_LEADER or state.elr or state.last_known_elr:
        eligibility = {
            "elr": state.elr,
            "last_known_elr": state.last_known_elr,
            "last_known_leader": state.last_known_leader,
            "lost": state.lost,
        }
        fields.append(eligibility)
    return f'"{state.index}":{json.dumps(fields, separators=(",", ":"))}'


def decode_states(
    path: str, data: bytes, assignment: Assignment, before: Sequence[PartitionState] = ()
) -> tuple[int, tuple[PartitionState, ...]]:
    """Decode a topic's state node: (controller epoch, state of each partition).

    before: earlier states. Those that have not changed are returned as the same objects.

    A partition that is missing in the node has no leader, since the topic's node may be newer. Raises
    `CorruptMetadata`.
    """
    document = _decode(path, data)
    adding, removing, until = assignment.adding, assignment.removing, assignment.latest_until_ms
    states = []
    try:
        found = document["partitions"]
        for index, replicas in enumerate(assignment.replicas):
            leader, leader_epoch, isr, partition_epoch, *more = found.get(str(index)) or _NO_STATE
            known = before[index] if index < len(before) else None
            if known is None or known.partition_epoch != partition_epoch or known.replicas != replicas:
                known = PartitionState(
                    index, replicas, replicas if tuple(isr) == replicas else _ids(isr), int(leader), int(leader_epoch),
                    int(partition_epoch), adding.get(index, ()), removing.get(index, ()), until.get(index),
                    *_eligible(more),
                )  # fmt: skip
            states.append(known)
        return int(document["controller_epoch"]), tuple(states)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def patch_states(
    path: str, data: bytes | Mapping[str, Any], before: Sequence[PartitionState]
) -> tuple[int, tuple[PartitionState, ...]]:
    """Return (controller epoch, states) after a write of some states. Raises `CorruptMetadata`.

    data: the content of a state node that may lack partitions, which have not changed.
    """
    document = _decode(path, data) if isinstance(data, bytes) else data
    states = list(before)
    try:
        for index, (leader, leader_epoch, isr, partition_epoch, *more) in document["partitions"].items():
            old = before[int(index)]
            if old.partition_epoch != partition_epoch:
                states[old.index] = PartitionState(
                    old.index, old.replicas, _ids(isr), int(leader), int(leader_epoch), int(partition_epoch),
                    old.adding, old.removing, old.latest_until_ms, *_eligible(more),
                )  # fmt: skip
        return int(document["controller_epoch"]), tuple(states)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def _eligible(more: Sequence[Any]) -> tuple[Any, ...]:
    """Return the last fields of a `PartitionState` from the text of `_encode_state`."""
    if not more:
        return ()
    fields = more[0]
    return (
        _ids(fields.get("elr", [])),
        _ids(fields.get("last_known_elr", [])),
        int(fields.get("last_known_leader", NO_LEADER)),
        tuple(map(str, fields.get("lost", []))),
    )


def encode_configs(configs: Mapping[str, str]) -> bytes:
    """Encode a node of settings."""
    return _encode({"version": 1, "config": dict(configs)})


def decode_configs(path: str, data: bytes) -> dict[str, str]:
    """Decode a node of settings. Raises `CorruptMetadata`."""
    configs = _decode(path, data).get("config")
    if not isinstance(configs, dict) or not all(isinstance(value, str) for value in configs.values()):
        raise CorruptMetadata(path, "no settings in it")
    return configs


def encode_broker(broker: Broker) -> bytes:
    """Encode a broker's node."""
    return _encode(
        {
            "version": 5,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "host_id": broker.host_id,
            "announced": broker.announced,
            "labels": broker.labels,
            "endpoints": [f"{e.listener}://{_bracket(e.host)}:{e.port}" for e in broker.endpoints],
            "listener_security_protocol_map": {e.listener: e.protocol for e in broker.endpoints},
            "stopping": broker.stopping,
            "directory_id": broker.directory_id,
            "epoch": broker.epoch,
            "directories": broker.directories,
            "fenced": broker.fenced,
            "offline_replicas": _by_topic(broker.outages.offline),
            "full_replicas": _by_topic(broker.outages.full),
            "cordoned": broker.outages.cordoned,
            "partition_limit": broker.partition_limit,
            "proof": broker.proof,
            "features": {one.name: {"min_version": one.lowest, "max_version": one.highest} for one in broker.features},
        }
    )


def decode_broker(path: str, data: bytes, incarnation: int = 0) -> Broker:
    """Decode a broker's node, whose name is the broker's id. Raises `CorruptMetadata`.

    incarnation: the transaction in which the node was created.
    """
    document = _decode(path, data)
    try:
        endpoints = []
        protocols = document.get("listener_security_protocol_map", {})
        for text in document["endpoints"]:
            listener, _, address = text.partition("://")
            host, _, port = address.rpartition(":")
            protocol = str(protocols.get(listener, "PLAINTEXT"))
            endpoints.append(Endpoint(listener, host.removeprefix("[").removesuffix("]"), int(port), protocol))
        if not endpoints:
            raise ValueError("a broker has endpoints")
        return Broker(
            int(path.rpartition("/")[2]), tuple(endpoints), document.get("rack"), incarnation,
            bool(document.get("stopping")), document.get("directory_id"), int(document.get("epoch", -1)),
            tuple(map(str, document.get("directories", ()))), bool(document.get("fenced")),
            outages=Outages(
                _replica_keys(document.get("offline_replicas", {})), _replica_keys(document.get("full_replicas", {})),
                bool(document.get("cordoned")),
            ),
            partition_limit=None if document.get("partition_limit") is None else int(document["partition_limit"]),
            proof=None if document.get("proof") is None else str(document["proof"]),
            labels=tuple(map(str, document.get("labels", ()))),
            features=tuple(
                FeatureRange(str(name), int(found["min_version"]), int(found["max_version"]))
                for name, found in document.get("features", {}).items()
            ),
            host_id=None if document.get("host_id") is None else str(document["host_id"]),
            announced=bool(document.get("announced")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def encode_registered(node_id: int) -> bytes:
    """Encode the node that names the broker that registered last."""
    return _encode({"version": 1, "broker": node_id})


def decode_registered(data: bytes) -> int:
    """Decode the node that names the broker that registered last. Raises `CorruptMetadata`, even without data."""
    try:
        return int(_decode(REGISTRATIONS, data)["broker"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMetadata(REGISTRATIONS, repr(error)) from error


def broker_epoch_path(broker: int) -> str:
    """Return the path of the node whose version is the broker epoch."""
    return f"{BROKER_EPOCHS}/{broker}"


def encode_directories(directories: Iterable[str]) -> bytes:
    """Encode the node of a broker's epoch: the ids of the data directories in which it may have replicas."""
    return _encode({"version": 1, "directories": sorted(directories)})


def decode_directories(path: str, data: bytes) -> frozenset[str]:
    """Decode the node of a broker's epoch. Raises `CorruptMetadata`."""
    directories = _decode(path, data).get("directories")
    if not isinstance(directories, list) or not all(isinstance(one, str) for one in directories):
        raise CorruptMetadata(path, "no data directories in it")
    return frozenset(directories)


def encode_cluster_id(cluster_id: str) -> bytes:
    """Encode the node of the cluster's id."""
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """Decode the node of the cluster's id. Raises `CorruptMetadata`."""
    cluster_id = _decode(CLUSTER_ID, data).get("id")
    if not isinstance(cluster_id, str) or not cluster_id:
        raise CorruptMetadata(CLUSTER_ID, "no id in it")
    return cluster_id


def encode_producer_block(broker: int, start: int, end: int) -> bytes:
    """Encode the node of the newest block of producer ids: the broker that has it, its first and its last id."""
    return _encode({"version": 1, "broker": broker, "block_start": str(start), "block_end": str(end)})


def decode_producer_block_end(data: bytes) -> int:
    """Return the last id of the newest block, -1 before the first. Raises `CorruptMetadata`."""
    if not data:
        return -1
    try:
        return int(_decode(PRODUCER_IDS, data)["block_end"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMetadata(PRODUCER_IDS, repr(error)) from error


def encode_controller(node_id: int, now_ms: int) -> bytes:
    """Encode the controller's node."""
    return _encode({"version": 1, "brokerid": node_id, "timestamp": str(now_ms)})


def decode_controller(data: bytes) -> int:
    """Return the controller's node id. Raises `CorruptMetadata`."""
    try:
        return int(_decode(CONTROLLER, data)["brokerid"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMetadata(CONTROLLER, repr(error)) from error


def decode_controller_epoch(data: bytes) -> int:
    """Return the epoch of the newest controller, 0 before the first. Raises `CorruptMetadata`."""
    try:
        return int(data or b"0")
    except ValueError as error:
        raise CorruptMetadata(CONTROLLER_EPOCH, error) from error


def encode_incarnations(incarnations: Mapping[int, int]) -> bytes:
    """Encode the node of the incarnations, by broker id, that a controller has taken into account."""
    return _encode({"version": 1, "brokers": {str(broker): number for broker, number in incarnations.items()}})


def decode_incarnations(data: bytes) -> dict[int, int]:
    """Decode incarnations by broker id; none before the first controller. Raises `CorruptMetadata`."""
    if not data:
        return {}
    try:
        brokers = _decode(INCARNATIONS, data)["brokers"]
        return {int(broker): int(number) for broker, number in brokers.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(INCARNATIONS, repr(error)) from error


def _ids(brokers: Any) -> tuple[int, ...]:
    if not isinstance(brokers, list) or not _INTEGER.issuperset(map(type, brokers)):
        raise ValueError(f"not a list of brokers: {str(brokers)[:100]}")
    return tuple(brokers)


def _by_index(replicas: Iterable[tuple[int, Sequence[int]]]) -> dict[str, list[int]]:
    return {str(index): list(brokers) for index, brokers in replicas}


def _by_topic(replicas: Iterable[ReplicaKey]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic_id, index in sorted(replicas):
        found.setdefault(id_to_text(topic_id), []).append(index)
    return found


def _replica_keys(found: Mapping[str, Sequence[int]]) -> frozenset[ReplicaKey]:
    return frozenset((id_from_text(text), int(index)) for text, indexes in found.items() for index in indexes)


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("utf-8")


def _decode(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptMetadata(path, error) from error
    if not isinstance(document, dict):
        raise CorruptMetadata(path, "not a JSON object")
    return document
