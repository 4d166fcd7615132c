"""Settings of single groups, in the nodes `/config/groups/<group>`, with Kafka's JSON.

Strategy: every broker keeps all of them in memory and hears of writes by the change feed, so a group's coordinator uses
a change at once. A group need not exist to have settings.

Rules: names are percent-encoded in paths, as Kafka's Sanitizer does. A group whose last setting is removed keeps its
node, empty.
Must not know: groups, requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.config import ConfigError, Settings
from pylogd.config.group import GROUP_SETTINGS
from pylogd.metadata.changes import ChangeFeed
from pylogd.metadata.configs import ConfigChange, apply_changes, change_configs
from pylogd.metadata.entity_configs import desanitize, sanitize
from pylogd.metadata.errors import InvalidConfig, NoNode
from pylogd.metadata.interfaces import IMetadataStore
from pylogd.metadata.layout import GROUP_CONFIGS, Change, CorruptMetadata, decode_configs

log = Logger()

_NONE: Mapping[str, str] = MappingProxyType({})


class GroupConfigs:
    """The settings of all groups, kept up to date."""

    def __init__(self, store: IMetadataStore, settings: Settings, feed: ChangeFeed) -> None:
        self._store = store
        self._settings = settings
        self._feed = feed
        self._configs: dict[str, Mapping[str, str]] = {}
        feed.add(self)

    def get(self, group_id: str) -> Mapping[str, str]:
        """Return the settings of a group, without those that it does not set itself."""
        return self._configs.get(group_id, _NONE)

    def names(self) -> list[str]:
        """Return the groups that have settings of their own, in order."""
        return sorted(self._configs)

    def integer(self, group_id: str, name: str) -> int:
        """Return the value of a setting for a group: its own, or the broker's."""
        return self._settings.group_value(self._configs.get(group_id, _NONE), name)

    def replace(self, group_id: str, configs: Mapping[str, str], *, validate_only: bool = False) -> Deferred[None]:
        """Replace the settings of a group. Fails with `InvalidConfig` or `InvalidChange`."""
        return Deferred.fromCoroutine(self._write(group_id, None, configs, validate_only))

    def alter(self, group_id: str, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> Deferred[None]:
        """Change some settings of a group. Fails with `InvalidConfig` or `InvalidChange`."""
        return Deferred.fromCoroutine(self._write(group_id, changes, {}, validate_only))

    async def _write(
        self, group_id: str, changes: Sequence[ConfigChange] | None, configs: Mapping[str, str], dry: bool
    ) -> None:
        async def change(before: Mapping[str, str]) -> Mapping[str, str] | None:
            wanted = configs if changes is None else apply_changes(before, changes, GROUP_SETTINGS.get)
            try:
                after = self._settings.check_group(wanted)
            except ConfigError as error:
                raise InvalidConfig(str(error)) from error
            return None if dry or after == before else after

        await self._store.ensure(GROUP_CONFIGS)
        await change_configs(self._store, self._feed, f"{GROUP_CONFIGS}/{sanitize(group_id)}", change)

    async def reload(self, store: IMetadataStore) -> None:
        """Read the settings of all groups."""
        try:
            nodes = await store.children_data(GROUP_CONFIGS)
        except NoNode:  # a cluster of an earlier release
            nodes = {}
        before, self._configs = self._configs, {}
        for name, node in nodes.items():
            self._put(f"{GROUP_CONFIGS}/{name}", node.data, before)

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read again the groups that a write has changed."""
        for path in change.paths:
            if path.startswith(f"{GROUP_CONFIGS}/"):
                self._put(path, (await store.get(path)).data, dict(self._configs))

    def _put(self, path: str, data: bytes, before: Mapping[str, Mapping[str, str]]) -> None:
        """Note what is in a node. One that can't be read keeps the settings that it had."""
        group_id = desanitize(path[len(GROUP_CONFIGS) + 1 :])
        try:
            found: Mapping[str, str] = {
                name: value for name, value in decode_configs(path, data).items() if self._is_usable(path, name, value)
            }
        except CorruptMetadata as error:
            log.error("{error}. Its settings stay as they were; delete the node and set them again", error=str(error))
            found = before.get(group_id, _NONE)
        if found:
            self._configs[group_id] = MappingProxyType(dict(found))
        else:
            self._configs.pop(group_id, None)

    @staticmethod
    def _is_usable(path: str, name: str, value: str) -> bool:
        """Return whether a stored setting is one that this release knows, and readable."""
        setting = GROUP_SETTINGS.get(name)
        try:
            if setting is not None:
                setting.parse(value)
                return True
        except ConfigError as error:
            log.warn("Ignoring a setting in {path}: {error}", path=path, error=str(error))
        return False
