"""Compare the refused requests with the error codes that the source names, and say why some are not provoked.

An error code that a handler of `pylogd.broker.api` names needs a case of its API. One of a module that handlers share
needs a case of an API whose handler uses that module. One of a package below needs any case.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from conformance.refused.model import Case

_SOURCE: Final = Path(__file__).resolve().parents[2] / "pylogd"
#: Packages below `api` whose error codes reach clients, and the one module of `replica` that is like them.
_BELOW: Final = (
    "broker/groups", "broker/transactions", "broker/security", "broker/telemetry", "broker/metadata", "store",
    "broker/replica/sessions.py",
)  # fmt: skip
#: Why error codes are not provoked, by module or package. The codes have spaces between them.
NOT_PROVOKED: Final[Mapping[str, Mapping[str, str]]] = {
    "it needs several brokers, or one that has stopped: the tests of replication and failover have it": {
        "errors": "FENCED_LEADER_EPOCH NOT_ENOUGH_REPLICAS NOT_LEADER_OR_FOLLOWER OFFSET_NOT_AVAILABLE",
        "fetch": "FENCED_LEADER_EPOCH NOT_LEADER_OR_FOLLOWER",
        "list_offsets": "LEADER_NOT_AVAILABLE",
        "metadata": "ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH INELIGIBLE_REPLICA "
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "metadata_pieces": "LEADER_NOT_AVAILABLE LISTENER_NOT_FOUND",
        "produce": "NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT",
        "delete_records": "REQUEST_TIMED_OUT",
    },
    "a coordinator answers so for moments only, while it starts, moves, or waits for another broker": {
        "add_offsets_to_txn": "COORDINATOR_NOT_AVAILABLE",
        "find_coordinator": "COORDINATOR_NOT_AVAILABLE",
        "groups": "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR",
        "produce_transactions": "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NETWORK_EXCEPTION "
        "NOT_COORDINATOR NOT_ENOUGH_REPLICAS",
        "transactions": "CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE "
        "NETWORK_EXCEPTION NOT_COORDINATOR",
        "txn_offset_commit": "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR",
    },
    "a client has so much of this work under way that further requests wait in vain": {
        "list_offsets": "REQUEST_TIMED_OUT",
        "consumer_group_heartbeat": "COORDINATOR_NOT_AVAILABLE",
        "list_transactions": "COORDINATOR_NOT_AVAILABLE",
    },
    "it depends on time: whether a change is done within the timeout, or a token has expired": {
        "create_partitions": "REQUEST_TIMED_OUT",
        "create_topics": "REQUEST_TIMED_OUT",
        "deadline": "REQUEST_TIMED_OUT",
        "delete_topics": "REQUEST_TIMED_OUT",
        "errors": "REQUEST_TIMED_OUT",
        "security": "DELEGATION_TOKEN_EXPIRED REQUEST_TIMED_OUT",
        "write_txn_markers": "REQUEST_TIMED_OUT",
        "update_features": "FEATURE_UPDATE_FAILED",
    },
    "the broker has failed, or its disk": {
        "alter_replica_log_dirs": "KAFKA_STORAGE_ERROR",
        "describe_log_dirs": "KAFKA_STORAGE_ERROR",
        "errors": "KAFKA_STORAGE_ERROR UNKNOWN_SERVER_ERROR",
        "fetch_cold": "KAFKA_STORAGE_ERROR",
        "groups": "UNKNOWN_SERVER_ERROR",
        "list_offsets": "KAFKA_STORAGE_ERROR",
        "metadata": "UNKNOWN_SERVER_ERROR",
        "produce": "KAFKA_STORAGE_ERROR",
        "produce_transactions": "UNKNOWN_SERVER_ERROR",
        "security": "UNKNOWN_SERVER_ERROR",
        "transactions": "UNKNOWN_SERVER_ERROR",
    },
    "the answer would be larger than an answer may be, which Apache Kafka does not limit": {
        "consumer_group_describe": "INVALID_REQUEST",
        "describe_groups": "INVALID_REQUEST",
        "describe_producers": "INVALID_REQUEST",
        "offset_fetch": "INVALID_REQUEST",
    },
    "only brokers and coordinators of older releases send or get it": {
        "errors": "TRANSACTION_COORDINATOR_FENCED",
        "transactions": "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    },
    "it is for metrics, which count it as no failure: it is not answered from there": {
        "traffic": "FENCED_LEADER_EPOCH INCONSISTENT_TOPIC_ID KAFKA_STORAGE_ERROR NOT_LEADER_OR_FOLLOWER "
        "REPLICA_NOT_AVAILABLE",
    },
    "it is for pylogd's own extensions: labels of topics, and directories that are reopened": {
        "alter_partition_reassignments": "TOPIC_AUTHORIZATION_FAILED",
        "alter_replica_log_dirs": "INVALID_REQUEST",
    },
    "conformance/metrics.py compares it: Apache Kafka serves these APIs with a plugin only": {
        "telemetry": "TELEMETRY_TOO_LARGE UNKNOWN_SUBSCRIPTION_ID",
    },
    "the cluster has to use a lower level of group.version, which can't be raised again in one run": {
        "consumer_group_heartbeat": "UNSUPPORTED_VERSION",
    },
    "so many slow regular expressions at once that more may not wait, which Apache Kafka does not limit": {
        "consumer_group_heartbeat": "COORDINATOR_NOT_AVAILABLE",
        "list_transactions": "COORDINATOR_NOT_AVAILABLE",
    },
    "offsets of thousands of partitions in one request; tests/integration/extremes/test_bounded_work.py has it": {
        "groups": "INVALID_COMMIT_OFFSET_SIZE",
    },
}


def named_in_source() -> dict[str, set[str]]:
    """Return the error codes that each module of `api`, and each package below it, names in other than comparisons."""
    found: dict[str, set[str]] = {}
    for path in sorted((_SOURCE / "broker" / "api").glob("*.py")):
        found.setdefault(path.stem, set()).update(_named(path))
    for name in _BELOW:
        below = _SOURCE / name
        for path in [below] if below.suffix else sorted(below.rglob("*.py")):
            found.setdefault(_room(name), set()).update(_named(path))
    return {room: codes - {"NONE"} for room, codes in found.items() if codes - {"NONE"}}


def _room(path: str) -> str:
    """Return the package of a path in `_BELOW`: `groups` of `broker/groups`."""
    return path.removeprefix("broker/").partition("/")[0]


def _named(path: Path) -> Iterator[str]:
    """Yield the error codes that a module names, except where it compares with them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    compared = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for side in node.comparators
        for part in ast.walk(side)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in compared or not node.attr.isupper():
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "ErrorCode":
            yield node.attr


@cache
def _used_by(handler: str) -> frozenset[str]:
    """Return the modules of `api` that a module uses, itself included."""
    found: set[str] = set()
    waiting = [handler]
    while waiting:
        module = waiting.pop()
        path = _SOURCE / "broker" / "api" / f"{module}.py"
        if module in found or not path.exists():
            continue
        found.add(module)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pylogd.broker.api"):
                name = (node.module or "").removeprefix("pylogd.broker.api").lstrip(".")
                waiting += [name] if name else [alias.name for alias in node.names]
    return frozenset(found)


def not_covered(cases: Iterable[Case], excused: Mapping[str, Mapping[str, str]] = NOT_PROVOKED) -> list[str]:
    """Return a line for each error code of the source that neither a case nor a reason covers."""
    provoked = _provoked(cases)
    excuses = {(room, code) for rooms in excused.values() for room, codes in rooms.items() for code in codes.split()}
    return sorted(
        f"{room}: {code}"
        for room, codes in named_in_source().items()
        for code in codes
        if (room, code) not in excuses and code not in provoked.get(room, ())
    )


def _provoked(cases: Iterable[Case]) -> dict[str, set[str]]:
    """Return the error codes that cases provoke, by module of `api` and package below."""
    found: dict[str, set[str]] = {_room(name): set() for name in _BELOW}
    below = list(found)
    for one in cases:
        for room in (*_used_by(one.api), *below):
            found.setdefault(room, set()).update(one.errors)
    return found


def needless(cases: Iterable[Case], excused: Mapping[str, Mapping[str, str]] = NOT_PROVOKED) -> list[str]:
    """Return a line for each reason that is not needed: a case provokes the code, or the source does not name it."""
    provoked, named = _provoked(cases), named_in_source()
    return sorted(
        f"{room}: {code}"
        for rooms in excused.values()
        for room, codes in rooms.items()
        for code in codes.split()
        if code in provoked.get(room, ()) or code not in named.get(room, ())
    )
