"""Where things are in the tree and how they are spelled there: the paths and JSON of Kafka's own ZooKeeper tree.

Tools of the field can read it. One node is ours: `/changes`, by which brokers hear of each other's writes (`changes`).
Every document is a JSON object with a `version`. Must not know: stores, look-ups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pylogd.metadata.errors import StoreError
from pylogd.metadata.image import Broker, Endpoint, id_from_text, id_to_text

BROKERS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
#: The child of BROKER_CONFIGS whose settings hold for every broker.
ALL_BROKERS: Final = "<default>"
CLUSTER_ID: Final = "/cluster/id"
PRODUCER_IDS: Final = "/latest_producer_id_block"
CHANGES: Final = "/changes"


class CorruptMetadata(StoreError):
    """A node holds something else than it should."""

    def __init__(self, path: str, reason: object) -> None:
        super().__init__(f"metadata node {path} is not readable: {reason}")
        self.path = path


def topic_path(name: str) -> str:
    """The node of a topic."""
    return f"{TOPICS}/{name}"


def topic_config_path(name: str) -> str:
    """The node of a topic's settings."""
    return f"{TOPIC_CONFIGS}/{name}"


def broker_config_path(broker: int | None) -> str:
    """The node of a broker's settings; None for those of all brokers."""
    return f"{BROKER_CONFIGS}/{ALL_BROKERS if broker is None else broker}"


def encode_topic(topic_id: bytes, replicas: Sequence[Sequence[int]]) -> bytes:
    """A topic's node: its id, and the replicas of each partition in order."""
    partitions = {str(index): list(brokers) for index, brokers in enumerate(replicas)}
    return _encode(
        {
            "version": 3,
            "topic_id": id_to_text(topic_id),
            "partitions": partitions,
            "adding_replicas": {},
            "removing_replicas": {},
        }
    )


def decode_topic(path: str, data: bytes) -> tuple[bytes, list[tuple[int, ...]]]:
    """(topic id, replicas of each partition) of a topic's node; raises `CorruptMetadata`."""
    document = _decode(path, data)
    try:
        partitions = document["partitions"]
        replicas = [tuple(int(broker) for broker in partitions[str(index)]) for index in range(len(partitions))]
        if not replicas or not all(replicas):
            raise ValueError("a topic has partitions, and they have replicas")
        return id_from_text(document["topic_id"]), replicas
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def encode_configs(configs: Mapping[str, str]) -> bytes:
    """A node of settings."""
    return _encode({"version": 1, "config": dict(configs)})


def decode_configs(path: str, data: bytes) -> dict[str, str]:
    """The settings of a node; raises `CorruptMetadata`."""
    configs = _decode(path, data).get("config")
    if not isinstance(configs, dict) or not all(isinstance(value, str) for value in configs.values()):
        raise CorruptMetadata(path, "no settings in it")
    return configs


def encode_broker(broker: Broker) -> bytes:
    """A broker's node."""
    return _encode(
        {
            "version": 5,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "endpoints": [f"{e.listener}://{_bracket(e.host)}:{e.port}" for e in broker.endpoints],
            "listener_security_protocol_map": {e.listener: "PLAINTEXT" for e in broker.endpoints},
        }
    )


def decode_broker(path: str, data: bytes) -> Broker:
    """The broker of a node; its id is the node's name. Raises `CorruptMetadata`."""
    document = _decode(path, data)
    try:
        endpoints = []
        for text in document["endpoints"]:
            listener, _, address = text.partition("://")
            host, _, port = address.rpartition(":")
            endpoints.append(Endpoint(listener, host.removeprefix("[").removesuffix("]"), int(port)))
        if not endpoints:
            raise ValueError("a broker has endpoints")
        return Broker(int(path.rpartition("/")[2]), tuple(endpoints), document.get("rack"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptMetadata(path, repr(error)) from error


def encode_cluster_id(cluster_id: str) -> bytes:
    """The node of the cluster's id."""
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """The cluster's id; raises `CorruptMetadata`."""
    cluster_id = _decode(CLUSTER_ID, data).get("id")
    if not isinstance(cluster_id, str) or not cluster_id:
        raise CorruptMetadata(CLUSTER_ID, "no id in it")
    return cluster_id


def encode_producer_block(broker: int, start: int, end: int) -> bytes:
    """The node of the newest block of producer ids: who holds it, its first and its last id."""
    return _encode({"version": 1, "broker": broker, "block_start": str(start), "block_end": str(end)})


def decode_producer_block_end(data: bytes) -> int:
    """The last id of the newest block, -1 before the first; raises `CorruptMetadata`."""
    if not data:
        return -1
    try:
        return int(_decode(PRODUCER_IDS, data)["block_end"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMetadata(PRODUCER_IDS, repr(error)) from error


def encode_change(paths: Sequence[str]) -> bytes:
    """The node that tells of a write: the paths that it touched."""
    return _encode({"version": 1, "paths": list(paths)})


def decode_change(data: bytes) -> list[str] | None:
    """The paths of the newest write, None if they can't be told (then everything is read again)."""
    try:
        paths = _decode(CHANGES, data).get("paths")
    except CorruptMetadata:
        return None
    return paths if isinstance(paths, list) and all(isinstance(path, str) for path in paths) else None


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("utf-8")


def _decode(path: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise CorruptMetadata(path, error) from error
    if not isinstance(document, dict):
        raise CorruptMetadata(path, "not a JSON object")
    return document
