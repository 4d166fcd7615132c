"""Send requests that a broker refuses to pylogd and to Apache Kafka, and compare the error codes.

The requests are the tables in `refused/`. `refused/coverage.py` says which error codes of the source they don't
provoke, and why; a unit test compares both with the source. A check passes if both brokers answer with the same error
codes, in any order, since Apache Kafka's is that of hash maps. What both answered is kept in results/refusals.json, by
the name of the check.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from conformance import kafka_peer
from conformance.brokers import watched
from conformance.checks import HERE, Check, expect
from conformance.refused import classic_groups, groups, records, security, settings, topics, transactions
from conformance.refused.model import (
    ANYONE,
    LIMITED,
    OPEN,
    PASSWORDS,
    PRODUCER,
    READER,
    SECURED,
    Case,
    Peer,
    errors_in,
)
from pylogd.base.ports import free_ports
from pylogd.local.broker import BrokerProcess
from pylogd.wire.messages.find_coordinator import FindCoordinatorRequest
from pylogd.wire.messages.metadata import MetadataRequest
from tests.pages import json_text
from tests.rawclient import RawClient, create_topic, wait_until

CASES: Final = (
    *topics.CASES,
    *records.CASES,
    *settings.CASES,
    *groups.CASES,
    *classic_groups.CASES,
    *transactions.CASES,
    *security.CASES,
)
_ANSWERS: Final = HERE / "results" / "refusals.json"
_JAAS: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_BOTH: Final = {
    "auto.create.topics.enable": "false",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.users.plain.sasl.jaas.config": f"{_JAAS} "
    + " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    + ";",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "controller.quota.window.num": "2",
}
SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    SECURED: {
        **_BOTH,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:admin;User:{LIMITED}",
        "delegation.token.secret.key": "a secret of the conformance run",
    },
    OPEN: {**_BOTH, "delete.topic.enable": "false", "group.max.size": "1", "group.consumer.max.size": "1"},
}
#: name -> partitions, settings
_TOPICS: Final[dict[str, tuple[int, dict[str, str]]]] = {
    "one": (1, {}),
    "four": (4, {}),
    "compacted": (1, {"cleanup_policy": "compact"}),
    "zstd": (1, {"compression_type": "zstd"}),
    "segments": (1, {"segment_bytes": "1048576", "max_message_bytes": "8388608"}),
    "two-in-sync": (1, {"min_insync_replicas": "2"}),
    "dotted.name": (1, {}),
    "doomed": (1, {}),
}
_GROUP, _TRANSACTIONAL_ID, _READ, _WRITE, _DELETE = 3, 5, 3, 4, 6
#: User, resource type, operation: each is allowed for all resources of the type.
_ALLOWED: Final = (
    (READER, _GROUP, _READ),
    (READER, _GROUP, _DELETE),
    (READER, _TRANSACTIONAL_ID, _WRITE),
    (PRODUCER, _TRANSACTIONAL_ID, _WRITE),
)
#: After how many seconds Apache Kafka's coordinators know of a topic that was made.
_LEARNS: Final = 2.0
Answers = dict[str, list[str]]


def suite(folder: Path) -> list[Check]:
    """Each request is a check."""
    ours: Answers = {}
    theirs: Answers = {}
    for brokers, defined in SETTINGS.items():
        cases = [one for one in CASES if one.brokers == brokers]
        here = folder / brokers
        here.mkdir()
        with pylogd(here, defined) as peer:
            ours.update(answers(peer, cases))
        kafka_folder = here / "kafka"
        kafka_folder.mkdir()
        with kafka(kafka_folder, defined) as peer:
            theirs.update(answers(peer, cases))
    kept = {one.title: {"pylogd": ours[one.title], "Apache Kafka": theirs[one.title]} for one in CASES}
    _ANSWERS.write_text(json_text(kept))
    return list(_checks(ours, theirs))


def _checks(ours: Answers, theirs: Answers) -> Iterator[Check]:
    for one in CASES:
        mine, other = ours[one.title], theirs[one.title]
        said = f"pylogd: {' '.join(mine)}; Apache Kafka: {' '.join(other)}"
        yield expect(one.title, Counter(mine) == Counter(other), said)
        named = frozenset(mine) - {"NONE"}
        if named != one.errors:
            yield expect(f"{one.title}: as the table says", False, f"{' '.join(mine)}, not {' '.join(one.errors)}")


def answers(peer: Peer, cases: Sequence[Case]) -> Answers:
    """Return the error codes of each case by its title."""
    _prepare(peer, secured=any(one.brokers == SECURED for one in cases))
    return {one.title: peer.outcome(one) for one in cases}


def _prepare(peer: Peer, *, secured: bool) -> None:
    """Create the topics, those of the coordinators too, and learn their ids. Give users permissions and a quota."""
    with peer.connect(ANYONE) as client:
        for name, (count, configs) in _TOPICS.items():
            create_topic(client, name, count, **configs)
        for kind in (0, 1):
            find = FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"])
            wait_until(partial(_has_coordinator, client, find), "there is a coordinator")
        if secured:
            _succeed(peer, client, "create_acls", 3, creations=[_acl(*one) for one in _ALLOWED])
            quota = [{"key": "controller_mutation_rate", "value": 0.001}]
            entity = [{"entity_type": "user", "entity_name": LIMITED}]
            _succeed(peer, client, "alter_client_quotas", 1, entries=[{"entity": entity, "ops": quota}])
        peer.directory = peer.ask(client, ("describe_log_dirs", 4, {"topics": None})).results[0].log_dir
        time.sleep(_LEARNS)
        peer.ids = {topic.name: topic.topic_id for topic in client.request(MetadataRequest(None), 12).topics}


def _acl(user: str, resource_type: int, operation: int) -> dict[str, Any]:
    return {
        "resource_type": resource_type, "resource_name": "*", "resource_pattern_type": 3, "principal": f"User:{user}",
        "host": "*", "operation": operation, "permission_type": 3,
    }  # fmt: skip


def _succeed(peer: Peer, client: RawClient, api: str, version: int, **body: Any) -> None:
    answer = peer.ask(client, (api, version, body))
    assert set(errors_in(answer)) == {"NONE"}, answer


def _has_coordinator(client: RawClient, find: FindCoordinatorRequest) -> bool:
    return not client.request(find, 4).coordinators[0].error_code


@contextmanager
def pylogd(folder: Path, defined: Mapping[str, str]) -> Iterator[Peer]:
    """Run pylogd with these settings."""
    [port] = free_ports(1)
    options = ["--node-id", "0", "--listen", f"USERS://127.0.0.1:{port}"]
    with watched(BrokerProcess(folder / "data", folder / "log", defined, options)) as broker:
        yield Peer(broker.address, f"127.0.0.1:{port}")


@contextmanager
def kafka(folder: Path, defined: Mapping[str, str]) -> Iterator[Peer]:
    """Run Apache Kafka with these settings."""
    [port] = free_ports(1)
    users = f"127.0.0.1:{port}"
    with kafka_peer.running(folder, defined, {"USERS": users}) as address:
        yield Peer(address, users)
