"""Checks of settings that types and limits can't express: values that contradict each other, and texts of a form.

`check_start` and `check_values` are all checks of a broker's settings, `check_topic_values` those of a topic's. Each
raises ConfigError. What is parsed in full is checked by its parser: `listeners`, `tls`, `labels`, `zookeeper`.

Must not know: authorizers, whose names are only text here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pylogd.config.group import check_assignment_interval
from pylogd.config.labels import COORDINATOR_LABELS, PLACEMENT_LABEL, check_label, check_labels, parse_coordinators
from pylogd.config.listeners import (
    check_connections,
    inter_broker_listener,
    listeners_of,
    metrics_listener,
    parse_advertised,
)
from pylogd.config.lookup import ListenerValues
from pylogd.config.metadata_store import check_store
from pylogd.config.tls import check_tls_values, tls_options
from pylogd.config.values import INT_MAX, ConfigError, Value
from pylogd.config.zookeeper import check_zookeeper

#: Kafka's names of the authorizer that decides by ACLs; they mean pylogd's authorizer.
KAFKA_AUTHORIZERS: Final = frozenset(
    {
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "kafka.security.authorizer.AclAuthorizer",
        "kafka.security.auth.SimpleAclAuthorizer",
    }
)
#: The least value at run time of limits that could lock operators out: a client needs several connections.
LEAST_AT_RUN_TIME: Final = 10
#: The value of `cordoned.log.dirs` for all directories.
ALL_DIRECTORIES: Final = "*"
#: Settings of topics that name replicas.
THROTTLED_REPLICAS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")


def check_start(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a broker can't start with these values.

    values: the effective settings by name.
    """
    directories = values["log.dirs"]
    if not directories:
        raise ConfigError("log.dirs is empty: name at least one directory", "log.dirs")
    if len({Path(directory).absolute() for directory in directories}) < len(directories):
        raise ConfigError("log.dirs names a directory twice", "log.dirs")
    check_store(values["metadata.store"])
    check_zookeeper(values)
    check_authorization(values)
    metrics_listener(values["metrics.listener"])
    check_values(values)


def check_values(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if values that may change at run time contradict each other."""
    check_lag(values, "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
    check_connections(values)
    check_tls_values(values)
    check_cordoned(values)
    check_lagging(values)
    check_assignment_interval(values)
    check_labels(values)
    parse_coordinators(",".join(values["coordinator.labels"]))
    listeners = listeners_of(values)
    parse_advertised(values["advertised.listeners"] or (), listeners)
    inter_broker_listener(values, listeners)
    for listener in listeners:
        if listener.protocol.tls:
            tls_options(ListenerValues(values, listener.name).__getitem__, listener.name)


def super_users(text: str) -> tuple[str, ...]:
    """Return the members of `super.users`, each `Type:name`. Raises ConfigError."""
    found = tuple(member.strip() for member in text.split(";") if member.strip())
    for member in found:
        kind, colon, name = member.partition(":")
        if not (kind and colon and name):
            raise ConfigError(
                f'super.users: "{member[:200]}" is not a principal; write for example User:admin', "super.users"
            )
    return found


def check_authorization(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that contradict each other."""
    super_users(values["super.users"])
    for name in ("authorizer.class.name", "principal.builder.class"):
        text = values[name]
        if text and text not in KAFKA_AUTHORIZERS and not all(part.isidentifier() for part in text.split(".")):
            raise ConfigError(f'{name} = "{text[:200]}" is not allowed: write the dotted name of a class', name)


def check_way_in(dynamic: Mapping[str, str], listeners: int) -> None:
    """Raise ConfigError if limits that are set at run time could lock out the operator who wants to change them back.

    listeners: the number of listeners. With several, the one between brokers is exempt from `max.connections`.
    """
    for name in ("max.connections", "max.connections.per.ip"):
        exempt = listeners > 1 and name != "max.connections.per.ip"
        if not exempt and int(dynamic.get(name, INT_MAX)) < LEAST_AT_RUN_TIME:
            raise ConfigError(
                f"{name} has to be at least {LEAST_AT_RUN_TIME} where it is set at run time, or nobody might get in to "
                "change it back; a smaller one can be set in the configuration file",
                name,
            )


def cordoned_directories(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the absolute paths of the data directories that take no new partitions."""
    cordoned = values["cordoned.log.dirs"]
    return frozenset(map(os.path.abspath, values["log.dirs"] if ALL_DIRECTORIES in cordoned else cordoned))


def check_cordoned(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a directory is cordoned that is not in `log.dirs`."""
    known = {os.path.abspath(path) for path in values["log.dirs"]}
    for path in values["cordoned.log.dirs"]:
        if path != ALL_DIRECTORIES and os.path.abspath(path) not in known:
            raise ConfigError(
                f"cordoned.log.dirs names {path}, which is not in log.dirs: name data directories of this broker, "
                f"or {ALL_DIRECTORIES} for all",
                "cordoned.log.dirs",
            )


def check_cleaner(dynamic: Mapping[str, str]) -> None:
    """Raise ConfigError if the cleaner would be stopped at run time."""
    if dynamic.get("log.cleaner.threads") == "0":
        raise ConfigError(
            "log.cleaner.threads has to be at least 1 where it is set at run time: no log would be compacted any more",
            "log.cleaner.threads",
        )


def check_lagging(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the limits of utilization contradict each other."""
    low, high = "lagging.consumer.disk.utilization.low", "lagging.consumer.disk.utilization.high"
    if values[low] >= values[high]:
        raise ConfigError(f"{low} = {values[low]} is not below {high} = {values[high]}", low)


def check_lag(values: Mapping[str, Value], shortest: str, longest: str) -> None:
    """Raise ConfigError if one compaction lag, of a broker or of a topic, is above another."""
    low, high = values[shortest], values[longest]
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise ConfigError(f"{shortest} = {low} is above {longest} = {high}", shortest)


def check_topic_values(values: Mapping[str, str]) -> None:
    """Raise ConfigError if settings of a topic (as text) have values that a broker refuses although their types allow
    them.
    """
    if label := values.get(PLACEMENT_LABEL.name):
        check_label(label, PLACEMENT_LABEL.name)
    parse_coordinators(values.get(COORDINATOR_LABELS.name) or "")
    check_unused(values)
    check_throttled(values)


def check_unused(values: Mapping[str, str]) -> None:
    """Raise ConfigError if a topic's settings request something that brokers do not have.

    values: the settings as text.
    """
    if values.get("remote.storage.enable") == "true":
        raise ConfigError(
            "remote.storage.enable = true is not possible: pylogd has no tiered storage. Set it to false, or leave it "
            "out; retention.ms and retention.bytes then hold for all records",
            "remote.storage.enable",
        )


def check_throttled(values: Mapping[str, str]) -> None:
    """Raise ConfigError if a topic's throttled replicas are neither `*` nor a list of `partition:broker`."""
    for name in THROTTLED_REPLICAS:
        text = values.get(name, "")
        if text not in ("", "*") and not all(map(_REPLICA.fullmatch, text.split(","))):
            raise ConfigError(
                f'{name} = "{text[:200]}" is not allowed: it must be * for all replicas, or a list of '
                "partition:broker, such as 0:1,0:2",
                name,
            )
