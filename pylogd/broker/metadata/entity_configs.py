"""Settings of users, client ids and IP addresses: client quotas, and SCRAM credentials of users.

Strategy: each entity has a node where Kafka has it, with Kafka's JSON (`/config/users/<user>`,
`/config/users/<user>/clients/<client id>`, `/config/clients/<client id>`, `/config/ips/<address>`). Every broker keeps
all of them in memory and learns of writes through the change feed. Subscribers know what a setting means.

Rules: names are percent-encoded in paths, as Kafka's Sanitizer does. The child `<default>` has the settings of all
entities without their own; an `Entity` names it by the empty name, which nobody can have. An entity whose last setting
is removed keeps its node, which may have children; it is not listed.

Must not know: quotas, credentials. Values may be secret: no message has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_plus

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogd.base.deferreds import all_of
from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.configs import change_configs
from pylogd.broker.metadata.layout import decode_configs
from pylogd.store.errors import CorruptMetadata, NoNode
from pylogd.store.interfaces import IMetadataStore, Node, parent_of
from pylogd.store.paths import CLIENT_CONFIGS, IP_CONFIGS, USER_CONFIGS

log = Logger()

#: The name, as a user, client id or IP address, of the entity that stands for all without settings of their own.
DEFAULT_NAME: Final = ""
_DEFAULT_NODE: Final = "<default>"
_CLIENTS: Final = "clients"  # the child of a user's node that has the client ids
_NOT_QUOTED: Final = {".": "%2E", "..": "%2E%2E"}  # names that are valid, but can't be names of nodes


class Entity(NamedTuple):
    """An entity that has settings: a user, a client id, a client id of a user, or an IP address.

    A part that is None does not belong to the entity.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


def sanitize(name: str) -> str:
    """Return a name in the form that paths use."""
    return _NOT_QUOTED.get(name) or quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    """Return the name for which a part of a path stands."""
    return unquote_plus(name)


def entity_path(entity: Entity) -> str:
    """Return the path of an entity's node. Raises ValueError for a combination without a path."""
    user, client_id, ip = entity
    if user is not None and ip is None:
        path = f"{USER_CONFIGS}/{_node_name(user)}"
        return path if client_id is None else f"{path}/{_CLIENTS}/{_node_name(client_id)}"
    if client_id is not None and ip is None:
        return f"{CLIENT_CONFIGS}/{_node_name(client_id)}"
    if ip is not None and user is None and client_id is None:
        return f"{IP_CONFIGS}/{_node_name(ip)}"
    raise ValueError("an entity is a user, a client id, both, or an IP address")


def entity_of_path(path: str) -> Entity | None:
    """Return the entity whose node is `path`; None if it is not the node of an entity."""
    for parent in (USER_CONFIGS, CLIENT_CONFIGS, IP_CONFIGS):
        if path.startswith(f"{parent}/"):
            first, *rest = path[len(parent) + 1 :].split("/")
            name = _name(first)
            if parent == USER_CONFIGS and len(rest) == 2 and rest[0] == _CLIENTS:
                return Entity(name, _name(rest[1]))
            if rest:
                return None
            if parent == USER_CONFIGS:
                return Entity(user=name)
            return Entity(client_id=name) if parent == CLIENT_CONFIGS else Entity(ip=name)
    return None


def _node_name(name: str) -> str:
    return sanitize(name) if name else _DEFAULT_NODE


def _name(node_name: str) -> str:
    return DEFAULT_NAME if node_name == _DEFAULT_NODE else desanitize(node_name)


def _none(failure: Failure) -> Mapping[str, Node]:
    failure.trap(NoNode)
    return {}


#: Called with the entities whose settings have changed; some may have no settings left.
EntityListener = Callable[[Iterable[Entity]], object]


class EntityConfigs:
    """The settings of all entities, kept up to date."""

    def __init__(self, store: IMetadataStore, feed: ChangeFeed) -> None:
        self._store = store
        self._feed = feed
        self._configs: dict[Entity, Mapping[str, str]] = {}
        self._listeners: list[EntityListener] = []
        feed.add(self)

    @property
    def configs(self) -> Mapping[Entity, Mapping[str, str]]:
        """The settings of every entity that has any."""
        return MappingProxyType(self._configs)

    def subscribe(self, listener: EntityListener) -> Callable[[], None]:
        """Call `listener` after each change; return a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def alter(self, entity: Entity, changes: Mapping[str, str | None]) -> Deferred[None]:
        """Set settings of an entity; a None value removes one. The others stay.

        Fires when this broker has read the change back. Fails with `InvalidChange` if others keep changing the node,
        with ValueError for an entity that can't have settings.
        """
        return Deferred.fromCoroutine(self._alter(entity_path(entity), changes))

    async def _alter(self, path: str, changes: Mapping[str, str | None]) -> None:
        async def change(before: Mapping[str, str]) -> Mapping[str, str] | None:
            merged = {**before, **changes}
            after = {name: value for name, value in merged.items() if value is not None}
            if after == before:
                return None
            await self._store.ensure(parent_of(path))
            return after

        await change_configs(self._store, self._feed, path, change, _decode)

    async def reload(self, store: IMetadataStore) -> None:
        """Read the settings of all entities."""
        paths = [USER_CONFIGS, CLIENT_CONFIGS, IP_CONFIGS]
        users, *_ = found = await all_of(store.children_data(path) for path in paths)
        paths += [f"{USER_CONFIGS}/{name}/{_CLIENTS}" for name in users]
        found += await all_of(store.children_data(path).addErrback(_none) for path in paths[3:])
        configs: dict[Entity, Mapping[str, str]] = {}
        for parent, nodes in zip(paths, found, strict=True):
            for name, node in nodes.items():
                self._put(configs, f"{parent}/{name}", node.data)
        before, self._configs = self._configs, configs
        self._tell(entity for entity in {**before, **configs} if before.get(entity) != configs.get(entity))

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read again the entities that a write has changed."""
        changed = []
        for path in change.paths:
            entity = entity_of_path(path)
            if entity is None:
                continue
            changed.append(entity)
            try:
                self._put(self._configs, path, (await store.get(path)).data)
            except NoNode:
                self._configs.pop(entity, None)
        self._tell(changed)

    def _put(self, configs: dict[Entity, Mapping[str, str]], path: str, data: bytes) -> None:
        """Apply the content of a node. An unreadable node keeps its earlier settings."""
        entity = entity_of_path(path)
        if entity is None:
            return
        try:
            found: Mapping[str, str] = _decode(path, data)
        except CorruptMetadata as error:
            log.error("{error}. Its settings are unchanged; delete the node and set them again", error=str(error))
            found = self._configs.get(entity, {})
        if found:
            configs[entity] = found
        else:
            configs.pop(entity, None)

    def _tell(self, changed: Iterable[Entity]) -> None:
        entities = tuple(changed)
        for listener in list(self._listeners) if entities else ():
            try:
                listener(entities)
            except Exception:
                log.failure("Unexpected error while applying changed settings of users or clients")


def _decode(path: str, data: bytes) -> dict[str, str]:
    """Return the settings in a node. A node that exists only because of its children has none."""
    return decode_configs(path, data) if data else {}
