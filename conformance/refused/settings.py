"""Refused requests about settings, quotas, features, and the cluster itself."""

from __future__ import annotations

from typing import Any, Final

from conformance.refused.model import ALICE, Case, case

_TOPIC, _BROKER, _LOGGER, _METRICS, _GROUP = 2, 4, 8, 16, 32
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


def _describe(name: str, errors: str, kind: int, resource: str, by: str = "anyone", **more: Any) -> Case:
    resources = [{"resource_type": kind, "resource_name": resource, "configuration_keys": None, **more}]
    return case("describe_configs", name, 4, errors, by, resources=resources)


DESCRIBE: Final = (
    _describe("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", _TOPIC, "nothing"),
    _describe("an invalid topic", "INVALID_TOPIC_EXCEPTION", _TOPIC, "a b"),
    _describe("an empty topic", "INVALID_TOPIC_EXCEPTION", _TOPIC, ""),
    _describe("a setting that does not exist", "", _TOPIC, "one", configuration_keys=["no.such.setting"]),
    _describe("another broker", "INVALID_REQUEST", _BROKER, "7"),
    _describe("a broker that is not a number", "INVALID_REQUEST", _BROKER, "seven"),
    _describe("loggers", "INVALID_REQUEST", _LOGGER, "0"),
    _describe("the loggers of another broker", "INVALID_REQUEST", _LOGGER, "7"),
    _describe("type 0", "INVALID_REQUEST", 0, "one"),
    _describe("type 3", "INVALID_REQUEST", 3, "one"),
    _describe("a group without a name", "INVALID_REQUEST", _GROUP, ""),
    _describe("a group that does not exist", "", _GROUP, "nothing"),
    _describe("a subscription without a name", "INVALID_REQUEST", _METRICS, ""),
    _describe("a subscription that does not exist", "", _METRICS, "nothing"),
    _describe("a group with a long name", "INVALID_GROUP_ID", _GROUP, "g" * 1025),
    _describe("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", _TOPIC, "one", ALICE),
    _describe("a broker, without permission", "CLUSTER_AUTHORIZATION_FAILED", _BROKER, "0", ALICE),
    _describe("a group, without permission", "GROUP_AUTHORIZATION_FAILED", _GROUP, "g", ALICE),
    _describe("a subscription, without permission", "CLUSTER_AUTHORIZATION_FAILED", _METRICS, "m", ALICE),
)


def _change(
    name: str, errors: str, kind: int, resource: str, *configs: tuple[str, Any, int], by: str = "anyone",
    twice: bool = False, validate_only: bool = False,
) -> Case:  # fmt: skip
    changes = [{"name": key, "value": value, "config_operation": operation} for key, value, operation in configs]
    resources = [{"resource_type": kind, "resource_name": resource, "configs": changes}] * (1 + twice)
    return case("incremental_alter_configs", name, 1, errors, by, resources=resources, validate_only=validate_only)


_DAY: Final = ("retention.ms", "86400000", _SET)

CHANGE: Final = (
    _change("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", _TOPIC, "nothing", _DAY),
    _change("an invalid topic", "INVALID_TOPIC_EXCEPTION", _TOPIC, "a b", _DAY),
    _change("an unknown setting", "INVALID_CONFIG", _TOPIC, "one", ("no.such.setting", "1", _SET)),
    _change("deleting an unknown setting", "", _TOPIC, "one", ("no.such.setting", None, _DELETE)),
    _change("a value that is not a number", "INVALID_CONFIG", _TOPIC, "one", ("retention.ms", "soon", _SET)),
    _change("no value", "INVALID_REQUEST", _TOPIC, "one", ("retention.ms", None, _SET)),
    _change("an empty value", "INVALID_CONFIG", _TOPIC, "one", ("retention.ms", "", _SET)),
    _change("an unknown operation", "INVALID_REQUEST", _TOPIC, "one", ("retention.ms", "1", 9)),
    _change("appending to what is not a list", "INVALID_CONFIG", _TOPIC, "one", ("retention.ms", "1", _APPEND)),
    _change("appending nothing", "INVALID_REQUEST", _TOPIC, "one", ("cleanup.policy", None, _APPEND)),
    _change("subtracting what is not there", "", _TOPIC, "one", ("cleanup.policy", "compact", _SUBTRACT)),
    _change("appending what is there", "", _TOPIC, "one", ("cleanup.policy", "delete", _APPEND)),
    _change("a setting twice", "INVALID_REQUEST", _TOPIC, "one", _DAY, _DAY),
    _change("a setting set and deleted", "INVALID_REQUEST", _TOPIC, "one", _DAY, ("retention.ms", None, _DELETE)),
    _change("a resource twice", "INVALID_REQUEST", _TOPIC, "one", _DAY, twice=True),
    _change("an unknown type", "INVALID_REQUEST", 3, "one", _DAY),
    _change("type 0", "INVALID_REQUEST", 0, "one", _DAY),
    _change("another broker", "INVALID_REQUEST", _BROKER, "7", ("max.connections", "5000", _SET)),
    _change("a broker that is not a number", "INVALID_REQUEST", _BROKER, "seven", ("max.connections", "5000", _SET)),
    _change("a setting that brokers only read", "INVALID_REQUEST", _BROKER, "0", ("node.id", "9", _SET)),
    _change("a broker's value that is not a number", "INVALID_REQUEST", _BROKER, "0", ("max.connections", "x", _SET)),
    _change("a setting of one broker for all", "INVALID_REQUEST", _BROKER, "", ("listeners", "X://:1", _SET)),
    _change("a group without a name", "INVALID_REQUEST", _GROUP, "", ("consumer.session.timeout.ms", "50000", _SET)),
    _change("an unknown setting of a group", "INVALID_CONFIG", _GROUP, "g", ("no.such.setting", "1", _SET)),
    _change("a group's value out of range", "INVALID_CONFIG", _GROUP, "g", ("consumer.session.timeout.ms", "1", _SET)),
    _change(
        "a group's value that is not a number",
        "INVALID_CONFIG",
        _GROUP,
        "g",
        ("consumer.session.timeout.ms", "soon", _SET),
    ),
    _change("a subscription without a name", "INVALID_REQUEST", _METRICS, "", ("metrics", "*", _SET)),
    _change("an unknown setting of a subscription", "INVALID_REQUEST", _METRICS, "m", ("nothing", "1", _SET)),
    _change("a subscription's interval out of range", "INVALID_REQUEST", _METRICS, "m", ("interval.ms", "1", _SET)),
    _change(
        "a subscription's interval that is not a number", "INVALID_CONFIG", _METRICS, "m", ("interval.ms", "x", _SET)
    ),
    _change("a subscription's faulty condition", "INVALID_CONFIG", _METRICS, "m", ("match", "nothing=x", _SET)),
    _change("a topic, without permission", "TOPIC_AUTHORIZATION_FAILED", _TOPIC, "one", _DAY, by=ALICE),
    _change("an unknown topic, without permission", "TOPIC_AUTHORIZATION_FAILED", _TOPIC, "nothing", _DAY, by=ALICE),
    _change(
        "a broker, without permission",
        "CLUSTER_AUTHORIZATION_FAILED",
        _BROKER,
        "0",
        ("max.connections", "5000", _SET),
        by=ALICE,
    ),
    _change(
        "a group, without permission",
        "GROUP_AUTHORIZATION_FAILED",
        _GROUP,
        "g",
        ("consumer.session.timeout.ms", "50000", _SET),
        by=ALICE,
    ),
)


def _replace(name: str, errors: str, kind: int, resource: str, *configs: tuple[str, Any]) -> Case:
    changes = [{"name": key, "value": value} for key, value in configs]
    resources = [{"resource_type": kind, "resource_name": resource, "configs": changes}]
    return case("alter_configs", name, 2, errors, resources=resources, validate_only=True)


REPLACE: Final = (
    _replace("an unknown topic", "UNKNOWN_TOPIC_OR_PARTITION", _TOPIC, "nothing", ("retention.ms", "1000")),
    _replace("an invalid topic", "INVALID_TOPIC_EXCEPTION", _TOPIC, "a b", ("retention.ms", "1000")),
    _replace("an unknown setting", "INVALID_CONFIG", _TOPIC, "one", ("no.such.setting", "1")),
    _replace("no value", "INVALID_REQUEST", _TOPIC, "one", ("retention.ms", None)),
    _replace("a value that is not a number", "INVALID_CONFIG", _TOPIC, "one", ("retention.ms", "soon")),
    _replace("a setting twice", "INVALID_REQUEST", _TOPIC, "one", ("retention.ms", "1000"), ("retention.ms", "2000")),
    _replace("an unknown type", "INVALID_REQUEST", 3, "one", ("retention.ms", "1000")),
    _replace("another broker", "INVALID_REQUEST", _BROKER, "7", ("max.connections", "5000")),
    _replace("a group without a name", "INVALID_REQUEST", _GROUP, "", ("consumer.session.timeout.ms", "50000")),
)


def _quota(name: str, errors: str, *entity: tuple[str, Any], by: str = "anyone", **ops: Any) -> Case:
    parts = [{"entity_type": kind, "entity_name": value} for kind, value in entity]
    changes = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()]
    return case("alter_client_quotas", name, 1, errors, by, entries=[{"entity": parts, "ops": changes}])


_USER: Final = ("user", "bob")

QUOTAS: Final = (
    _quota("no entity", "INVALID_REQUEST", producer_byte_rate=1.0),
    _quota("an unknown type of entity", "INVALID_REQUEST", ("topic", "x"), producer_byte_rate=1.0),
    _quota("an empty name", "INVALID_REQUEST", ("user", ""), producer_byte_rate=1.0),
    _quota("a part twice", "", _USER, _USER, producer_byte_rate=1.0),
    _quota("an address with a user", "INVALID_REQUEST", _USER, ("ip", "10.0.0.1"), connection_creation_rate=5.0),
    _quota(
        "a name that is not an address", "INVALID_REQUEST", ("ip", "not.a.host.invalid"), connection_creation_rate=5.0
    ),
    _quota("an unknown quota", "INVALID_REQUEST", _USER, nonsense=1.0),
    _quota("a quota of addresses for a user", "INVALID_REQUEST", _USER, connection_creation_rate=5.0),
    _quota("a rate that is not whole", "INVALID_REQUEST", _USER, producer_byte_rate=1.5),
    _quota("a negative rate", "INVALID_REQUEST", _USER, producer_byte_rate=-1.0),
    _quota("no rate at all", "INVALID_REQUEST", _USER, producer_byte_rate=0.0),
    _quota("a rate that is not a number", "INVALID_REQUEST", _USER, producer_byte_rate=float("nan")),
    _quota("an infinite rate", "INVALID_REQUEST", _USER, producer_byte_rate=float("inf")),
    _quota("removing what is not there", "", _USER, producer_byte_rate=None),
    _quota("removing an unknown quota", "", _USER, nonsense=None),
    _quota("no changes", "", _USER),
    _quota("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", _USER, by=ALICE, producer_byte_rate=1.0),
)


def _find(name: str, errors: str, *components: tuple[str, int, Any], by: str = "anyone") -> Case:
    parts = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    return case("describe_client_quotas", name, 1, errors, by, components=parts)


FIND_QUOTAS: Final = (
    _find("an unknown type of entity", "UNSUPPORTED_VERSION", ("topic", 2, None)),
    _find("an empty type of entity", "INVALID_REQUEST", ("", 2, None)),
    _find("a part twice", "INVALID_REQUEST", ("user", 2, None), ("user", 1, None)),
    _find("an unknown way to match", "INVALID_REQUEST", ("user", 9, None)),
    _find("a name without a name", "INVALID_REQUEST", ("user", 0, None)),
    _find("an empty name", "", ("user", 0, "")),
    _find("the default with a name", "INVALID_REQUEST", ("user", 1, "bob")),
    _find("anything with a name", "INVALID_REQUEST", ("user", 2, "bob")),
    _find("an address and a user", "INVALID_REQUEST", ("user", 2, None), ("ip", 2, None)),
    _find("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", ("user", 2, None), by=ALICE),
)


def _feature(name: str, errors: str, *updates: tuple[str, int, int], by: str = "anyone", only: bool = True) -> Case:
    changes = [{"feature": key, "max_version_level": level, "upgrade_type": kind} for key, level, kind in updates]
    return case("update_features", name, 1, errors, by, feature_updates=changes, validate_only=only)


CLUSTER: Final = (
    _feature("an unknown feature", "INVALID_UPDATE_VERSION", ("nonsense", 1, 1)),
    _feature("a feature twice", "", ("group.version", 1, 1), ("group.version", 1, 1)),
    _feature("a level too high", "INVALID_UPDATE_VERSION", ("group.version", 99, 1)),
    _feature("a negative level", "INVALID_UPDATE_VERSION", ("group.version", -1, 1)),
    _feature("a downgrade as an upgrade", "INVALID_UPDATE_VERSION", ("transaction.version", 1, 1)),
    _feature("an unknown type of upgrade", "INVALID_UPDATE_VERSION", ("group.version", 1, 9)),
    _feature("a user without permission", "CLUSTER_AUTHORIZATION_FAILED", ("group.version", 1, 1), by=ALICE),
    case("describe_cluster", "controllers", 2, "MISMATCHED_ENDPOINT_TYPE", endpoint_type=2),
    case("describe_cluster", "an unknown type of endpoint", 2, "UNSUPPORTED_ENDPOINT_TYPE", endpoint_type=9),
    case("describe_cluster", "a user without permission", 2, "", ALICE),
    case("api_versions", "an empty software name", 3, "INVALID_REQUEST", client_software_version="1"),
    case(
        "api_versions",
        "a software name with a space",
        3,
        "INVALID_REQUEST",
        client_software_name="a b",
        client_software_version="1",
    ),
    case("api_versions", "an empty software version", 3, "INVALID_REQUEST", client_software_name="a"),
    case("api_versions", "a version that does not exist", 99, "UNSUPPORTED_VERSION"),
    case("list_config_resources", "an unknown type", 1, "UNSUPPORTED_VERSION", resource_types=[99]),
    case("list_config_resources", "type 0", 1, "UNSUPPORTED_VERSION", resource_types=[0]),
    case("list_config_resources", "loggers", 1, "", resource_types=[_LOGGER]),
    case("list_config_resources", "a user without permission", 1, "CLUSTER_AUTHORIZATION_FAILED", ALICE),
)

CASES: Final = (*DESCRIBE, *CHANGE, *REPLACE, *QUOTAS, *FIND_QUOTAS, *CLUSTER)
