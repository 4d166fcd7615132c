"""Read the file that describes a mirror: its clusters, its routes, and the metadata store of its processes.

Names have dots, as in Kafka's files, and may be quoted: TOML's tables and dotted names mean the same here.
docs/mirror.md lists all names. Every error says where it is, and which values are possible there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pylogd.client.core.metadata import parse_bootstrap
from pylogd.client.core.options import ClientOptions
from pylogd.client.core.security import SecurityOptions
from pylogd.client.properties import is_security, security_from
from pylogd.client.registry.access import Access
from pylogd.client.zookeeper.security import connection_security
from pylogd.config.values import ConfigError
from pylogd.config.zookeeper import ZooKeeperSecurity, parse_connect
from pylogd.lake.tables.errors import TableError
from pylogd.lake.tables.interface import DIRECTORIES, VALUE_KINDS, Layout
from pylogd.lake.tables.opening import parse_table
from pylogd.services.mirror.errors import InvalidMirrorFile
from pylogd.services.mirror.starting import StartAt

INTERNAL: Final = "__"


class InvalidPattern(ValueError):
    """A pattern is not a regular expression, or can't be matched here."""


class TopicPatterns:
    """The patterns of a route.

    Patterns are regular expressions of google-re2, which match in linear time, and have to match a topic's whole name.
    Topics that clusters and mirrors keep for themselves are never copied: their names begin with two underscores.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        """Raises InvalidPattern."""
        self._texts = (tuple(include), tuple(exclude))
        self._include = [_compiled(pattern) for pattern in include]
        self._exclude = [_compiled(pattern) for pattern in exclude]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicPatterns) and self._texts == other._texts

    def __hash__(self) -> int:
        return hash(self._texts)

    def matches(self, topic: str) -> bool:
        """Return whether a topic of this name is copied."""
        if topic.startswith(INTERNAL):
            return False
        return any(p.fullmatch(topic) for p in self._include) and not any(p.fullmatch(topic) for p in self._exclude)

    def select(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that are copied, sorted."""
        return sorted(topic for topic in topics if self.matches(topic))


def _compiled(pattern: str) -> Any:
    try:
        import re2  # noqa: PLC0415  # an optional dependency
    except ImportError:
        raise InvalidPattern(
            "topics are matched with the package google-re2: pip install 'pylogd-broker[mirror]'"
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        text = error.args[0] if error.args else error
        reason = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        raise InvalidPattern(f"the pattern {pattern!r} is not a regular expression: {reason}") from None


_SECONDS: Final = 1000.0
_REGISTRY: Final = "schema.registry."


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A cluster by its name in the file.

    exactly_once: whether routes to this cluster write in transactions.
    """

    name: str
    bootstrap: str
    security: SecurityOptions | None = None
    exactly_once: bool = True

    def options(self, mirror: str, refresh_seconds: float) -> ClientOptions:
        """Return the options of connections to the cluster."""
        return ClientOptions(
            client_id=f"pylogd-mirror-{mirror}", security=self.security, request_timeout=30.0,
            metadata_max_age=max(30.0, 10 * refresh_seconds),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """The registry with the schemas of a typed table.

    properties: TLS and credentials, see `client.registry.access`.

    subject: "" for `TOPIC-value`.
    message: the full name of a Protobuf message type; "" for the file's first type.
    """

    url: str = field(repr=False)  # it may contain a password, like the properties
    properties: Mapping[str, str] = field(repr=False)
    subject: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """A table by its name in the file.

    location: the place of the table in the form of `pylogd load`, which begins with the format.

    layout: how rows are stored.
    properties: the properties of Iceberg's catalog, or of the storage.
    commit_seconds, commit_bytes: a worker commits after so many seconds, or so many bytes of batches.
    schemas: the registry of a typed table; None for a table of records.
    """

    name: str
    location: str
    layout: Layout
    properties: Mapping[str, str]
    commit_seconds: float = 10.0
    commit_bytes: int = 512 << 20
    schemas: SchemaSettings | None = None


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """A route copies topics of the cluster `source` to `target`, which is a cluster or a table.

    rename: the name at the target, in which {topic} and {source} mean the topic and the source's name.
    start: where the copying of a new topic begins.
    bytes_per_second: the limit of this route at one worker; 0 means no limit.
    rack: the rack of the mirror, to read from replicas near it.
    """

    name: str
    source: str
    target: str
    patterns: TopicPatterns
    rename: str = "{topic}"
    start: StartAt = "earliest"
    bytes_per_second: float = 0.0
    sync_configs: bool = True
    sync_acls: bool = True
    configs_exclude: frozenset[str] = frozenset()
    replication_factor: int = -1
    rack: str | None = None

    def target_name(self, topic: str) -> str:
        """Return a topic's name at the target."""
        return self.rename.replace("{topic}", topic).replace("{source}", self.source)


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """The contents of the file. Times are in seconds, rates in bytes per second of each worker."""

    name: str
    clusters: Mapping[str, ClusterSettings]
    routes: Mapping[str, RouteSettings]
    tables: Mapping[str, TableSettings] = field(default_factory=dict)
    zookeeper: str = ""
    store_path: str = ""
    session_timeout_ms: int = 4_000
    zookeeper_security: ZooKeeperSecurity = field(default_factory=ZooKeeperSecurity)
    commit_seconds: float = 0.5
    refresh_seconds: float = 2.0
    worker_bytes_per_second: float = 0.0
    offset_map_days: int = 7

    def ends(self, route: RouteSettings) -> tuple[ClusterSettings, ClusterSettings | TableSettings]:
        """Return the source and the target of a route."""
        target = route.target
        return self.clusters[route.source], self.tables.get(target) or self.clusters[target]

    def options_of(self, cluster: str) -> ClientOptions:
        """Return the options of connections to a cluster."""
        return self.clusters[cluster].options(self.name, self.refresh_seconds)


def read_file(path: str | Path) -> MirrorSettings:
    """Read a file. Raises InvalidMirrorFile, whose text begins with the path."""
    try:
        return parse(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InvalidMirrorFile(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, InvalidMirrorFile) as error:
        raise InvalidMirrorFile(f"{path}: {error}") from error


def parse(text: str) -> MirrorSettings:
    """Return the settings in a file's text. Raises InvalidMirrorFile."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidMirrorFile(f"not TOML: {error}") from error
    clusters = _clusters(document.pop("cluster", {}))
    tables = _tables(document.pop("table", {}), clusters)
    routes = _routes(document.pop("route", []), clusters, tables)
    fields = _Fields("the file", _flat(document))
    settings = MirrorSettings(
        name=fields.take("name", _name, "mirror"), clusters=clusters, tables=tables, routes=routes,
        zookeeper=fields.take("zookeeper.connect", _connect, ""), store_path=fields.take("metadata.store", _text, ""),
        session_timeout_ms=fields.take("zookeeper.session.timeout.ms", _positive, 4_000),
        zookeeper_security=fields.zookeeper_security(),
        commit_seconds=fields.take("commit.interval.ms", _positive, 500) / _SECONDS,
        refresh_seconds=fields.take("refresh.interval.ms", _positive, 2000) / _SECONDS,
        worker_bytes_per_second=fields.take("worker.bytes.per.second", _rate, 0.0),
        offset_map_days=fields.take("offset.map.retention.days", _positive, 7),
    )  # fmt: skip
    fields.end()
    if bool(settings.zookeeper) == bool(settings.store_path):
        raise InvalidMirrorFile("set zookeeper.connect, or for a mirror of one process metadata.store, and not both")
    return settings


def _clusters(tables: Any) -> dict[str, ClusterSettings]:
    if not isinstance(tables, dict) or not tables:
        raise InvalidMirrorFile("there is no cluster: write [cluster.NAME] with bootstrap.servers")
    found = {}
    for name, table in tables.items():
        fields = _Fields(f"[cluster.{name}]", _flat(table))
        bootstrap = fields.take("bootstrap.servers", _bootstrap)
        exactly_once = fields.take("exactly.once", _boolean, True)
        found[_name(name)] = ClusterSettings(name, bootstrap, fields.security(), exactly_once)
        fields.end()
    return found


def _tables(given: Any, clusters: Mapping[str, ClusterSettings]) -> dict[str, TableSettings]:
    if not isinstance(given, dict):
        raise InvalidMirrorFile("tables are written as [table.NAME] with location")
    found = {}
    for name, table in given.items():
        fields = _Fields(f"[table.{name}]", _flat(table))
        if name in clusters:
            raise InvalidMirrorFile(f"{fields.where}: there is a cluster of this name: give the table another one")
        location, schemas = fields.take("location", _location), fields.schemas()
        by, value = fields.take("partition.by", _one_of(DIRECTORIES), "hour"), "columns"
        if schemas is None:
            value = fields.take("value", _one_of(VALUE_KINDS), "binary")
        found[_name(name)] = TableSettings(
            name, location, Layout(by, value), fields.properties("property."),
            fields.take("commit.interval.ms", _positive, 10_000) / _SECONDS,
            fields.take("commit.bytes", _positive, 512 << 20), schemas,
        )  # fmt: skip
        fields.end()
    return found


def _routes(
    tables: Any, clusters: Mapping[str, ClusterSettings], targets: Mapping[str, TableSettings]
) -> dict[str, RouteSettings]:
    if not isinstance(tables, list) or not tables:
        raise InvalidMirrorFile("there is no route: write [[route]] with source, target and topics")
    found: dict[str, RouteSettings] = {}
    for number, table in enumerate(tables, 1):
        route = _route(_Fields(f"[[route]] number {number}", _flat(table)), clusters, targets)
        if route.name in found:
            raise InvalidMirrorFile(f"two routes have the name {route.name!r}: give one of them another name")
        found[route.name] = route
    return found


def _route(
    fields: _Fields, clusters: Mapping[str, ClusterSettings], tables: Mapping[str, TableSettings]
) -> RouteSettings:
    source, target = fields.take("source", _one_of(clusters)), fields.take("target", _one_of([*clusters, *tables]))
    topics, exclude = fields.take("topics", _texts), fields.take("exclude", _texts, ())
    try:
        patterns = TopicPatterns(topics, exclude)
    except InvalidPattern as error:
        raise InvalidMirrorFile(f"{fields.where}: {error}") from None
    rename = fields.take("rename", _rename, "{topic}")
    if source == target:
        raise InvalidMirrorFile(f"{fields.where}: source and target are the same cluster, {source!r}")
    route = RouteSettings(
        name=fields.take("name", _name, f"{source}-{target}"), source=source, target=target, patterns=patterns,
        rename=rename, start=fields.take("start", _one_of(("earliest", "latest")), "earliest"),
        bytes_per_second=fields.take("bytes.per.second", _rate, 0.0),
        sync_configs=fields.take("sync.configs", _boolean, True), sync_acls=fields.take("sync.acls", _boolean, True),
        configs_exclude=frozenset(fields.take("configs.exclude", _texts, ())),
        replication_factor=fields.take("replication.factor", _positive, -1),
        rack=fields.take("client.rack", _text, None),
    )  # fmt: skip
    fields.end()
    return route


class _Fields:
    """The fields of a table, each of which is taken once."""

    def __init__(self, where: str, fields: dict[str, Any]) -> None:
        self.where = where
        self._fields = fields
        self._known: list[str] = []

    def take(self, name: str, convert: Callable[[Any], Any], *default: Any) -> Any:
        """Return a field's value, converted; its default if there is none. Raises InvalidMirrorFile."""
        self._known.append(name)
        if name not in self._fields:
            if not default:
                raise InvalidMirrorFile(f"{self.where}: {name} is missing")
            return default[0]
        value = self._fields.pop(name)
        try:
            return convert(value)
        except ValueError as error:
            raise InvalidMirrorFile(f"{self.where}: {name}: {error}") from None

    def security(self) -> SecurityOptions | None:
        """Take the security of connections."""
        self._known.append("security.protocol, ssl.*, sasl.*")
        given = {name: str(self._fields.pop(name)) for name in list(self._fields) if is_security(name)}
        try:
            return security_from(given)
        except ValueError as error:
            raise InvalidMirrorFile(f"{self.where}: {error}") from None

    def zookeeper_security(self) -> ZooKeeperSecurity:
        """Take the security of the connection to ZooKeeper."""
        self._known.append("zookeeper.auth.*, zookeeper.sasl.*, zookeeper.ssl.*")
        prefixes = ("zookeeper.auth.", "zookeeper.sasl.", "zookeeper.ssl.")
        given = {name: str(self._fields.pop(name)) for name in list(self._fields) if name.startswith(prefixes)}
        try:
            return connection_security(given)
        except ValueError as error:
            raise InvalidMirrorFile(f"{self.where}: {error}") from None

    def schemas(self) -> SchemaSettings | None:
        """Remove and return the settings of a typed table; None if there is no URL of a registry."""
        url = self.take("schema.registry.url", _text, None)
        given = {f"{_REGISTRY}{name}": value for name, value in self.properties(_REGISTRY).items()}
        subject, message = self.take("subject", _text, ""), self.take("message", _text, "")
        if url is None:
            for name in (*given, *(["subject"] if subject else []), *(["message"] if message else [])):
                raise InvalidMirrorFile(f"{self.where}: {name} needs {_REGISTRY}url")
            return None
        try:
            Access(url, given)
        except ValueError as error:
            raise InvalidMirrorFile(f"{self.where}: {error}") from None
        return SchemaSettings(url, given, subject, message)

    def properties(self, prefix: str) -> dict[str, str]:
        """Take the fields whose names begin with a prefix. Return them without the prefix."""
        self._known.append(f"{prefix}*")
        names = [name for name in self._fields if name.startswith(prefix)]
        return {name.removeprefix(prefix): str(self._fields.pop(name)) for name in names}

    def end(self) -> None:
        """Raise InvalidMirrorFile if a field is left."""
        for name in self._fields:
            raise InvalidMirrorFile(f"{self.where}: there is no {name!r} here, but: {', '.join(self._known)}")


def _flat(table: Any, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a table and of the tables in it, by dotted names."""
    if not isinstance(table, dict):
        raise InvalidMirrorFile(f"{prefix.rstrip('.') or 'a cluster or route'} has to be a table")
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"a text is needed, not {value!r}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(each, str) for each in values):
        raise ValueError(f"a list of texts is needed, not {value!r}")
    return tuple(values)


def _name(value: Any) -> str:
    text = _text(value)
    if not all(each.isalnum() or each in "._-" for each in text) or not text.isascii() or text in (".", ".."):
        raise ValueError(f"a name has letters, digits, '.', '_' and '-' only, not {value!r}")
    return text


def _rename(value: Any) -> str:
    text = _text(value)
    if "{topic}" not in text:
        raise ValueError("it has to contain {topic}, or all topics would get one name")
    return text


def _connect(value: Any) -> str:
    try:
        parse_connect(_text(value))
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return _text(value)


def _bootstrap(value: Any) -> str:
    text = ",".join(_texts(value))
    parse_bootstrap(text)
    return text


def _location(value: Any) -> str:
    try:
        parse_table(_text(value))
    except TableError as error:
        raise ValueError(str(error)) from None
    return _text(value)


def _positive(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"a whole number above 0 is needed, not {value!r}")
    return value


def _rate(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise ValueError(f"a number of bytes per second is needed, 0 for no limit, not {value!r}")
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"true or false, not {value!r}")
    return value


def _one_of(names: Any) -> Callable[[Any], str]:
    def convert(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{value!r} is not one of {', '.join(names)}")
        return str(value)

    return convert
