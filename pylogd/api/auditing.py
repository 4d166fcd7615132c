"""What the audit log is told of administrative requests: what was asked, and with what result.

Strategy: one function for all APIs. Of a request it takes the fields that are known to be harmless, by their names; of
a response every part that has an error code, with the names around it. A field that nobody has listed here is left
out, so that a new API can't leak a secret. Values of settings are taken if the setting is known not to be sensitive.

Both may be large, so `describe` runs in the audit log's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pylogd.config import SETTINGS, TOPIC_SETTINGS
from pylogd.errors import ErrorCode
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
#: Names of the fields of a response that say what an error code is about.
_NAMES: Final = (
    "name", "topic", "topic_name", "topic_id", "resource_type", "resource_name", "pattern_type", "group_id", "user",
    "principal", "host", "operation", "permission_type", "partition_index", "partition_id", "entity",
    "entity_type", "entity_name", "feature",
)  # fmt: skip
_MOST_RESULTS: Final = 1000
_MOST_ELEMENTS: Final = 1000  # of one list of a request


def describe(request: Any, response: object, version: int = 0) -> tuple[dict[str, Any], bool]:
    """Return what was asked with its results, and whether any part of it was done.

    response: encoded at `version`, if the handler has done that.
    """
    if isinstance(response, bytes):
        response = schema.response_codec(request.API_KEY, version).decode(memoryview(response))
    results = list(_results(response, {})) if isinstance(response, Message) else []
    done = any(result["error"] == ErrorCode.NONE.name for result in results)
    if len(results) > _MOST_RESULTS:
        results[_MOST_RESULTS:] = [{"not_written": len(results) - _MOST_RESULTS}]
    return {"request": _shown(request), "results": results}, done


def _shown(value: Any) -> Any:
    if isinstance(value, Message):
        slots: tuple[str, ...] = value.__slots__
        fields: dict[str, Any] = {name: getattr(value, name) for name in slots if name in _SHOWN}
        if isinstance(fields.get("value"), str):
            name = fields.get("name")
            setting = SETTINGS.get(name) or TOPIC_SETTINGS.get(name) if isinstance(name, str) else None
            if setting is None or setting.sensitive:
                fields["value"] = "(hidden)"
        return {name: _shown(inner) for name, inner in fields.items()}
    if isinstance(value, list):
        shown = [_shown(one) for one in value[:_MOST_ELEMENTS]]
        return shown if len(value) <= _MOST_ELEMENTS else [*shown, f"and {len(value) - _MOST_ELEMENTS} more"]
    return value.hex() if isinstance(value, bytes | memoryview) else value


def _results(message: Message, around: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each innermost part that has an error code, with the names of what is around it."""
    slots: tuple[str, ...] = message.__slots__
    about = around | {name: _shown(getattr(message, name)) for name in _NAMES if name in slots}
    inner = [
        result
        for name in slots
        if isinstance(parts := getattr(message, name), list)
        for part in parts
        if isinstance(part, Message)
        for result in _results(part, about)
    ]
    yield from inner
    code = getattr(message, "error_code", None)
    if isinstance(code, int) and (code or not inner):
        yield {**about, "error": _error_name(code)}


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
