"""Settings of named entities, such as groups: each has a node below a parent, with Kafka's JSON.

Strategy: every broker keeps all of them in memory and learns of writes through the change feed, so it uses a change at
once. An entity with settings need not exist.

Rules: names are percent-encoded in paths, as Kafka's Sanitizer does. When the last setting of a name is removed, its
node stays, empty.
Must not know: groups, clients, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.base.limits.expressions import InvalidExpression, check
from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.configs import ConfigChange, apply_changes, change_configs
from pylogd.broker.metadata.entity_configs import desanitize, sanitize
from pylogd.broker.metadata.errors import InvalidConfig
from pylogd.broker.metadata.layout import decode_configs
from pylogd.config import ConfigError, Setting, Settings
from pylogd.config.client_metrics import MATCH, check_subscription, parse_match
from pylogd.config.tables import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from pylogd.store.errors import CorruptMetadata, NoNode
from pylogd.store.interfaces import IMetadataStore
from pylogd.store.paths import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS

log = Logger()

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class NamedConfigs:
    """The settings of all names below one parent, kept up to date.

    version: grows whenever any settings may have changed.
    """

    def __init__(
        self,
        store: IMetadataStore,
        feed: ChangeFeed,
        parent: str,
        table: Mapping[str, Setting],
        check: Callable[[Mapping[str, str]], dict[str, str]],
    ) -> None:
        """Arguments:

        table: the settings by name.
        check: returns settings in canonical spelling, or raises ConfigError.
        """
        self._store = store
        self._feed = feed
        self._parent = parent
        self._table = table
        self._check = check
        self._configs: dict[str, Mapping[str, str]] = {}
        self.version = 0
        feed.add(self)

    def get(self, name: str) -> Mapping[str, str]:
        """Return the settings of a name."""
        return self._configs.get(name, NO_SETTINGS)

    def names(self) -> list[str]:
        """Return the names that have settings, in order."""
        return sorted(self._configs)

    def replace(self, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> Deferred[None]:
        """Replace the settings of a name. Fails with `InvalidConfig` or `InvalidChange`."""
        return Deferred.fromCoroutine(self._write(name, None, configs, validate_only))

    def alter(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> Deferred[None]:
        """Change some settings of a name. Fails with `InvalidConfig` or `InvalidChange`."""
        return Deferred.fromCoroutine(self._write(name, changes, {}, validate_only))

    async def _write(
        self, name: str, changes: Sequence[ConfigChange] | None, configs: Mapping[str, str], dry: bool
    ) -> None:
        async def change(before: Mapping[str, str]) -> Mapping[str, str] | None:
            wanted = configs if changes is None else apply_changes(before, changes, self._table.get)
            try:
                after = self._check(wanted)
            except ConfigError as error:
                raise InvalidConfig(str(error)) from error
            return None if dry or after == before else after

        await self._store.ensure(self._parent)
        await change_configs(self._store, self._feed, f"{self._parent}/{sanitize(name)}", change)

    async def reload(self, store: IMetadataStore) -> None:
        """Read the settings of all names."""
        try:
            nodes = await store.children_data(self._parent)
        except NoNode:  # the cluster was made by an earlier release
            nodes = {}
        before, self._configs = self._configs, {}
        self.version += 1
        for name, node in nodes.items():
            self._put(f"{self._parent}/{name}", node.data, before)

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read again the names that a write has changed."""
        for path in change.paths:
            if path.startswith(f"{self._parent}/"):
                self._put(path, (await store.get(path)).data, dict(self._configs))
                self.version += 1

    def _put(self, path: str, data: bytes, before: Mapping[str, Mapping[str, str]]) -> None:
        """Apply the content of a node. An unreadable node keeps its earlier settings."""
        name = desanitize(path[len(self._parent) + 1 :])
        try:
            found: Mapping[str, str] = {
                name: value for name, value in decode_configs(path, data).items() if self._is_usable(path, name, value)
            }
        except CorruptMetadata as error:
            log.error("{error}. Its settings are unchanged; delete the node and set them again", error=str(error))
            found = before.get(name, NO_SETTINGS)
        if found:
            self._configs[name] = MappingProxyType(dict(found))
        else:
            self._configs.pop(name, None)

    def _is_usable(self, path: str, name: str, value: str) -> bool:
        """Return whether this release knows a stored setting and can read it."""
        setting = self._table.get(name)
        try:
            if setting is not None:
                setting.parse(value)
                return True
        except ConfigError as error:
            log.warn(
                "Not using {name} in {path}: {error}. Set it again, or delete it",
                name=name, path=path, error=str(error),
            )  # fmt: skip
        return False


class ClientMetricsConfigs(NamedConfigs):
    """Subscriptions to the metrics of clients, in the nodes `/config/client-metrics/<subscription>`.

    A subscription exists as long as it has settings.
    """

    def __init__(self, store: IMetadataStore, feed: ChangeFeed) -> None:
        super().__init__(store, feed, CLIENT_METRICS_CONFIGS, CLIENT_METRICS_SETTINGS, _checked)


def _checked(overrides: Mapping[str, str]) -> dict[str, str]:
    checked = check_subscription(overrides)
    for attribute, expression in parse_match(checked.get(MATCH, "")).items():
        try:
            check(expression)
        except InvalidExpression as error:
            raise ConfigError(f"match: {attribute}: {error}", MATCH) from error
    return checked


class GroupConfigs(NamedConfigs):
    """Settings of single groups, in the nodes `/config/groups/<group>`. A group need not exist to have settings."""

    def __init__(self, store: IMetadataStore, settings: Settings, feed: ChangeFeed) -> None:
        super().__init__(store, feed, GROUP_CONFIGS, GROUP_SETTINGS, settings.check_group)
        self._settings = settings

    def integer(self, group_id: str, name: str) -> int:
        """Return the value of a setting for a group: its own, or the broker's."""
        return self._settings.group_value(self.get(group_id), name)
