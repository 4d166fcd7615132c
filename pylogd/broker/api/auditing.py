"""Describe administrative requests and their results for the audit log.

Strategy: one function describes all APIs. From a request it takes the fields that are known to be harmless, by their
names. From a response it takes every part that has an error code, with the names of the enclosing parts. A field that
is not listed here is left out, so that a new API can't leak a secret. Values of settings are taken if the setting is
known not to be sensitive.

Requests and responses may be large, so `describe` runs in the audit log's thread, and takes no more than fits into a
line. It takes little from refused requests, so that nobody can fill the disk with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from pylogd.base.errors import ErrorCode
from pylogd.broker.security.audit import shorten
from pylogd.config import SETTINGS, TOPIC_SETTINGS
from pylogd.wire import schema
from pylogd.wire.values import Message

#: APIs that change something other than records and the offsets of members.
ADMINISTRATIVE: Final = frozenset(
    {
        "AlterClientQuotas", "AlterConfigs", "AlterPartitionReassignments", "AlterReplicaLogDirs",
        "AlterUserScramCredentials", "CreateAcls", "CreateDelegationToken", "CreatePartitions", "CreateTopics",
        "DeleteAcls", "DeleteGroups", "DeleteRecords", "DeleteTopics", "ElectLeaders", "ExpireDelegationToken",
        "IncrementalAlterConfigs", "OffsetDelete", "RenewDelegationToken", "UpdateFeatures",
    }
)  # fmt: skip

#: Names of harmless fields.
_SHOWN: Final = frozenset(
    {
        "allow_replication_factor_change", "assignments", "broker_ids", "config_operation", "configs", "count",
        "creations", "deletions", "dirs", "election_type", "entity", "entity_name", "entity_type", "entries",
        "expiry_time_period_ms", "feature", "filters", "group_id", "groups_names", "host", "host_filter", "iterations",
        "key", "max_lifetime_ms", "max_version_level", "mechanism", "name", "num_partitions", "offset", "operation",
        "ops", "owner_principal_name", "owner_principal_type", "partition_index", "partition_indexes", "partitions",
        "path", "pattern_type", "pattern_type_filter", "permission_type", "principal", "principal_filter",
        "principal_name", "principal_type", "remove", "renew_period_ms", "renewers", "replicas", "replication_factor",
        "resource_name", "resource_name_filter", "resource_pattern_type", "resource_type", "resource_type_filter",
        "resources", "timeout_ms", "topic", "topic_id", "topic_names", "topic_partitions", "topics", "upsertions",
        "validate_only", "value",
    }
)  # fmt: skip
#: Names of the response fields that say to what an error code belongs.
_NAMES: Final = (
    "name", "topic", "topic_name", "topic_id", "resource_type", "resource_name", "pattern_type", "group_id", "user",
    "principal", "host", "operation", "permission_type", "partition_index", "partition_id", "entity",
    "entity_type", "entity_name", "feature",
)  # fmt: skip
_MOST_RESULTS: Final = 1000
_MOST_ELEMENTS: Final = 1000  # the most elements that are described of one list of a request
#: About how many characters a request may take in a line; its results may take as many again.
_MOST_DONE: Final = 1 << 20
_MOST_REFUSED: Final = 1 << 13


class _Allowance:
    """How many more characters a part of a line may have."""

    __slots__ = ("left",)

    def __init__(self, characters: int) -> None:
        self.left = characters


def describe(request: Any, response: object, version: int = 0) -> tuple[dict[str, Any], bool]:
    """Return a request's parts with their results, and whether any part took effect.

    response: the message, or its bytes at `version` if the handler has encoded it.
    """
    if isinstance(response, bytes):
        response = schema.response_codec(request.API_KEY, version).decode(memoryview(response))
    total, done, results = 0, False, []
    if isinstance(response, Message):
        for code in _codes(response):
            total += 1
            done = done or not code
        done = done and not getattr(request, "validate_only", False)
    most = _MOST_DONE if done else _MOST_REFUSED
    if isinstance(response, Message):
        allowance = _Allowance(most)
        for result in islice(_results(response, {}, allowance), _MOST_RESULTS):
            results.append(result)
            if allowance.left <= 0:
                break
    if len(results) < total:
        results.append({"not_written": total - len(results)})
    return {"request": _shown(request, _Allowance(most)), "results": results}, done


def _shown(value: Any, allowance: _Allowance) -> Any:
    if isinstance(value, Message):
        slots: tuple[str, ...] = value.__slots__
        fields: dict[str, Any] = {name: getattr(value, name) for name in slots if name in _SHOWN}
        if isinstance(fields.get("value"), str):
            name = fields.get("name")
            setting = SETTINGS.get(name) or TOPIC_SETTINGS.get(name) if isinstance(name, str) else None
            if setting is None or setting.sensitive:
                fields["value"] = "(hidden)"
        allowance.left -= sum(map(len, fields))
        return {name: _shown(inner, allowance) for name, inner in fields.items()}
    if isinstance(value, list):
        shown: list[Any] = []
        for element in value:
            if len(shown) == _MOST_ELEMENTS or allowance.left <= 0:
                shown.append(f"and {len(value) - len(shown)} more")
                break
            shown.append(_shown(element, allowance))
        return shown
    if isinstance(value, bytes | memoryview):
        value = value.hex()
    if isinstance(value, str):
        value = shorten(value)
        allowance.left -= len(value)
    allowance.left -= 8
    return value


def _codes(message: Message) -> Iterator[int]:
    """Yield the error code of each part of a response that `_results` describes."""
    inner = False
    for part in _parts(message):
        for found in _codes(part):
            inner = True
            yield found
    code = getattr(message, "error_code", None)
    if isinstance(code, int) and (code or not inner):
        yield code


def _results(message: Message, around: dict[str, Any], allowance: _Allowance) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each innermost part that has an error code, with the names of the enclosing parts."""
    slots: tuple[str, ...] = message.__slots__
    about = around | {name: _shown(getattr(message, name), allowance) for name in _NAMES if name in slots}
    inner = False
    for part in _parts(message):
        for result in _results(part, about, allowance):
            inner = True
            yield result
    code = getattr(message, "error_code", None)
    if isinstance(code, int) and (code or not inner):
        allowance.left -= sum(map(len, about))
        yield {**about, "error": _error_name(code)}


def _parts(message: Message) -> Iterator[Message]:
    slots: tuple[str, ...] = message.__slots__
    for name in slots:
        parts = getattr(message, name)
        if isinstance(parts, list):
            yield from (part for part in parts if isinstance(part, Message))


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
