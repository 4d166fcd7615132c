"""Read the console's configuration file: clusters, roles, and which values are masked.

[clusters.main]
bootstrap = "broker1:9092,broker2:9092"
command-config = "client.properties"        # TLS and SASL, named as in Kafka; paths are relative to this file
schema-registry = "http://localhost:8081"
metrics = ["http://broker1:9640/metrics"]   # of each broker
mirrors = ["http://mirror1:8091/metrics"]   # of each process of the mirrors that read or write this cluster
audit = "http://localhost:8090/"            # the audit service
zookeeper = "zk1:2181/chroot"               # in which consumers coordinate
links = {"Grafana" = "https://grafana.example.com/"}

[clusters.main.tables.flights]              # a table that topics of this cluster are loaded into
location = "delta:/data/flights"            # as for `pylogd load --table`
properties = {}                             # of its catalog or storage

[[masking]]
topics = "payments.*"                       # pattern of shells
fields = ["card.number", "iban"]            # of JSON, Avro and Protobuf values; without it the whole value

[roles]                                     # `roles` has what members may be
admin = ["user:ada"]
operator = ["claim:groups=platform"]
others = "viewer"                           # whoever logs in and is not named; "none" if it is not there
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pylogd.base.errors import PylogdError
from pylogd.client.core.metadata import parse_bootstrap
from pylogd.client.properties import parse_properties, security_from
from pylogd.config import ConfigError
from pylogd.config.zookeeper import parse_connect
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.opening import parse_table
from pylogd.services.console.clusters import ClusterOptions
from pylogd.services.console.masking import MaskingRule
from pylogd.services.console.roles import Role, Roles
from pylogd.services.console.tables import TableOptions

_CLUSTER: Final = {
    "bootstrap": str, "command-config": str, "schema-registry": str, "metrics": list, "mirrors": list, "audit": str,
    "tables": dict, "links": dict, "zookeeper": str,
}  # fmt: skip
_TABLE: Final = {"location": str, "properties": dict}
_RULE: Final = {"topics": str, "fields": list}
_ROLES: Final = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "admin": Role.ADMIN}
_OTHERS: Final = {"none": Role.NONE, "viewer": Role.VIEWER}


class BadConfiguration(PylogdError):
    """The configuration file can't be used; the message says where and why."""


class Configuration(NamedTuple):
    """The contents of a configuration file.

    roles: the roles; None if the file has none.
    """

    clusters: Sequence[ClusterOptions]
    masking: Sequence[MaskingRule] = ()
    roles: Roles | None = None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the document of a TOML file. Raises BadConfiguration."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfiguration(f"can't read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path}: {error}") from None


def read(path: Path) -> Configuration:
    """Return the contents of a file, and of the property files that it names. Raises BadConfiguration."""
    document = read_toml(path)
    _check(document, {"clusters": dict, "masking": list, "roles": dict}, str(path))
    clusters = document.get("clusters", {})
    if not clusters:
        raise BadConfiguration(f"{path}: name at least one cluster, in a table [clusters.NAME]")
    return Configuration(
        [_cluster(name, table, path) for name, table in clusters.items()],
        [_rule(table, path) for table in document.get("masking", [])],
        _roles(document["roles"], f"{path}: roles") if "roles" in document else None,
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
        if "zookeeper" in table:
            parse_connect(table["zookeeper"])
        properties = {}
        if "command-config" in table:
            properties = parse_properties((path.parent / table["command-config"]).read_text("utf-8"))
        security = security_from(properties) if properties else None
    except OSError as error:
        raise BadConfiguration(f"{where}: can't read {error.filename}: {error.strerror}") from None
    except (ValueError, ConfigError) as error:
        raise BadConfiguration(f"{where}: {error}") from None
    registry = {key: value for key, value in properties.items() if key.startswith("schema.registry.")}
    return ClusterOptions(
        name, table["bootstrap"], security, table.get("schema-registry", ""), registry,
        tuple(map(str, table.get("metrics", ()))), tuple(_link(one, where) for one in table.get("mirrors", ())),
        _link(table["audit"], where) if "audit" in table else "",
        {str(key): _table(value, f"{where}.tables.{key}") for key, value in table.get("tables", {}).items()},
        {str(key): _link(value, where) for key, value in table.get("links", {}).items()},
        table.get("zookeeper", ""),
    )  # fmt: skip


def _link(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise BadConfiguration(f"{where}: links, mirrors and the audit begin with http:// or https://")
    return value


def _table(table: Any, where: str) -> TableOptions:
    _check(table, _TABLE, where)
    if not table.get("location"):
        raise BadConfiguration(f'{where}: write its location, such as "delta:/data/flights"')
    try:
        parse_table(table["location"])
    except TableError as error:
        raise BadConfiguration(f"{where}: {error}") from None
    return TableOptions(table["location"], {key: str(value) for key, value in table.get("properties", {}).items()})


def _roles(table: Any, where: str) -> Roles:
    _check(table, {**dict.fromkeys(_ROLES, list), "others": str}, where)
    others = table.get("others", "none")
    if others not in _OTHERS:
        raise BadConfiguration(f"{where}: others has to be one of {', '.join(_OTHERS)}")
    try:
        return Roles({role: map(str, table.get(name, ())) for name, role in _ROLES.items()}, _OTHERS[others])
    except ValueError as error:
        raise BadConfiguration(f"{where}: {error}") from None


def _rule(table: Any, path: Path) -> MaskingRule:
    where = f"{path}: masking"
    _check(table, _RULE, where)
    if not table.get("topics"):
        raise BadConfiguration(f'{where}: each rule needs `topics`, a pattern such as "payments.*"')
    return MaskingRule(table["topics"], tuple(map(str, table.get("fields", ()))))
