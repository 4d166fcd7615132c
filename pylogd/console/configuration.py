"""Read the console's configuration file: clusters, and which values are masked.

[clusters.main]
bootstrap = "broker1:9092,broker2:9092"
command-config = "client.properties"        # TLS and SASL, named as in Kafka; paths are relative to this file
schema-registry = "http://localhost:8081"
metrics = ["http://broker1:9640/metrics"]   # of each broker
links = {"Audit" = "http://localhost:8090/"}

[[masking]]
topics = "payments.*"                       # pattern of shells
fields = ["card.number", "iban"]            # of JSON, Avro and Protobuf values; without it the whole value
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pylogd.client.core.metadata import parse_bootstrap
from pylogd.client.properties import parse_properties, security_from
from pylogd.console.clusters import ClusterOptions
from pylogd.console.masking import MaskingRule
from pylogd.errors import PylogdError

_CLUSTER: Final = {
    "bootstrap": str, "command-config": str, "schema-registry": str, "metrics": list, "links": dict,
}  # fmt: skip
_RULE: Final = {"topics": str, "fields": list}


class BadConfiguration(PylogdError):
    """The configuration file can't be used; the message says where and why."""


class Configuration(NamedTuple):
    """What a file says."""

    clusters: Sequence[ClusterOptions]
    masking: Sequence[MaskingRule]


def read(path: Path) -> Configuration:
    """Read a file, and the property files that it names. Raises BadConfiguration."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfiguration(f"can't read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path}: {error}") from None
    _check(document, {"clusters": dict, "masking": list}, str(path))
    clusters = document.get("clusters", {})
    if not clusters:
        raise BadConfiguration(f"{path}: name at least one cluster, in a table [clusters.NAME]")
    return Configuration(
        [_cluster(name, table, path) for name, table in clusters.items()],
        [_rule(table, path) for table in document.get("masking", [])],
    )


def _check(table: Any, known: Mapping[str, type], where: str) -> None:
    if not isinstance(table, dict):
        raise BadConfiguration(f"{where}: write a table")
    for name, value in table.items():
        if name not in known:
            raise BadConfiguration(f"{where}: there is no {name!r}; known are {', '.join(known)}")
        if not isinstance(value, known[name]):
            raise BadConfiguration(f"{where}: {name} has to be a {known[name].__name__}")


def _cluster(name: str, table: Any, path: Path) -> ClusterOptions:
    where = f"{path}: clusters.{name}"
    _check(table, _CLUSTER, where)
    try:
        parse_bootstrap(table.get("bootstrap", ""))
        properties = {}
        if "command-config" in table:
            properties = parse_properties((path.parent / table["command-config"]).read_text("utf-8"))
        security = security_from(properties) if properties else None
    except OSError as error:
        raise BadConfiguration(f"{where}: can't read {error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise BadConfiguration(f"{where}: {error}") from None
    registry = {key: value for key, value in properties.items() if key.startswith("schema.registry.")}
    return ClusterOptions(
        name, table["bootstrap"], security, table.get("schema-registry", ""), registry,
        tuple(map(str, table.get("metrics", ()))),
        {str(key): _link(value, where) for key, value in table.get("links", {}).items()},
    )  # fmt: skip


def _link(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise BadConfiguration(f"{where}: links begin with http:// or https://")
    return value


def _rule(table: Any, path: Path) -> MaskingRule:
    where = f"{path}: masking"
    _check(table, _RULE, where)
    if not table.get("topics"):
        raise BadConfiguration(f'{where}: each rule needs `topics`, a pattern such as "payments.*"')
    return MaskingRule(table["topics"], tuple(map(str, table.get("fields", ()))))
