"""Settings that are changed at run time: incremental changes (KIP-339), and the dynamic settings of brokers.

Strategy: a change is applied and checked against the settings tables before it is written. Every broker reads written
settings through the change feed, and puts them in force by `Settings.set_dynamic`. Topic settings use the same
functions, but belong to their topic (`topic_admin`).

Must not know: requests, DescribeConfigs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogd.broker.metadata.change_notes import Change
from pylogd.broker.metadata.changes import ChangeFeed
from pylogd.broker.metadata.errors import InvalidChange, InvalidConfig
from pylogd.broker.metadata.layout import broker_config_path, decode_configs, encode_configs
from pylogd.broker.metadata.passwords import PasswordEncoder
from pylogd.config import ConfigError, ConfigType, Setting, Settings, Value, broker_setting
from pylogd.config.checks import check_cleaner, check_way_in
from pylogd.store.errors import BadVersion, CorruptMetadata, NodeExists, NoNode
from pylogd.store.interfaces import Create, IMetadataStore, Operation, SetData
from pylogd.store.paths import BROKER_CONFIGS

log = Logger()

#: How often a change is tried if other writes keep coming first.
ATTEMPTS: Final = 5
#: Returns the settings in the data of a node, given with its path. Raises CorruptMetadata.
Decode: TypeAlias = Callable[[str, bytes], dict[str, str]]


class ConfigOperation(IntEnum):
    """The operation on a setting, with the codes of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """A change to one setting.

    value: None for DELETE.
    """

    name: str
    operation: ConfigOperation
    value: str | None = None


def apply_changes(
    current: Mapping[str, str], changes: Sequence[ConfigChange], find: Callable[[str], Setting | None]
) -> dict[str, str]:
    """Return the settings `current` after `changes`. `find` returns a setting by its name.

    APPEND and SUBTRACT change lists; a list that is not set starts from the built-in default, as in Kafka. Raises
    `InvalidConfig`, or `InvalidChange` for a setting that is named twice or has no value.
    """
    after = dict(current)
    if len({change.name for change in changes}) < len(changes):
        raise InvalidChange("a setting is named twice")
    for name, operation, value in changes:
        setting = find(name)
        if operation is ConfigOperation.DELETE:
            after.pop(name, None)  # even if the setting does not exist: Kafka accepts this, and nothing changes
        elif value is None:
            raise InvalidChange(f"{name} needs a value")
        elif operation is ConfigOperation.SET:
            after[name] = value
        elif setting is None or setting.type is not ConfigType.LIST:
            raise InvalidConfig(f"{name} is not a list, which APPEND and SUBTRACT need")
        else:
            members = _members(after.get(name, setting.format(setting.default) or ""))
            given = _members(value)
            if operation is ConfigOperation.APPEND:
                members += [member for member in given if member not in members]
            else:
                members = [member for member in members if member not in given]
            after[name] = ",".join(members)
    return after


async def _accept(_values: Mapping[str, Value]) -> None:
    """Check nothing."""


class BrokerConfigs:
    """The dynamic settings of brokers. The settings of this broker are put in force.

    check: called with the effective settings by name before a change is written; raises ConfigError to refuse it.
    """

    check: Callable[[Mapping[str, Value]], Awaitable[None]]

    def __init__(self, store: IMetadataStore, settings: Settings, node_id: int, feed: ChangeFeed) -> None:
        self._store = store
        self._settings = settings
        self._node_id = node_id
        self._feed = feed
        self._all: dict[str, str] = {}
        self._mine: dict[str, str] = {}
        self.check = _accept
        self._passwords = PasswordEncoder(
            lambda: (settings.text("password.encoder.secret"), settings.text("password.encoder.old.secret"))
        )
        feed.add(self)

    def replace(self, broker: int | None, configs: Mapping[str, str], *, validate_only: bool = False) -> Deferred[None]:
        """Replace the dynamic settings of a broker; None means those of all brokers. Fails with `InvalidConfig`."""
        return Deferred.fromCoroutine(self._write(broker, None, configs, validate_only))

    def alter(
        self, broker: int | None, changes: Sequence[ConfigChange], *, validate_only: bool = False
    ) -> Deferred[None]:
        """Change the dynamic settings of a broker; None means those of all brokers.

        Fails with `InvalidConfig` or `InvalidChange`.
        """
        return Deferred.fromCoroutine(self._write(broker, changes, {}, validate_only))

    async def reload(self, store: IMetadataStore) -> None:
        """Read the settings and put them in force."""
        self._all = await self._read(store, None, self._all)
        self._mine = await self._read(store, self._node_id, self._mine)
        try:
            self._settings.set_dynamic(self._all, self._mine)
        except ConfigError as error:  # the broker has to start nevertheless
            log.error("The settings set at run time contradict each other and are not applied: {error}",
                      error=str(error))  # fmt: skip

    async def refresh(self, store: IMetadataStore, change: Change) -> None:
        """Read the settings again if a write has changed them."""
        if any(path.startswith(f"{BROKER_CONFIGS}/") for path in change.paths):
            await self.reload(store)

    async def _read(self, store: IMetadataStore, broker: int | None, before: dict[str, str]) -> dict[str, str]:
        """Return the valid settings of a node; `before` if the node can't be read."""
        path = broker_config_path(broker)
        try:
            stored = decode_configs(path, (await store.get(path)).data)
        except NoNode:
            return {}
        except CorruptMetadata as error:
            log.error("{error}. The settings are unchanged; delete the node and set them again", error=str(error))
            return before
        decoded, failed = self._passwords.decode(stored)
        for name in failed:
            log.error(
                "Ignoring {name} in {path}: it was encrypted with another password.encoder.secret. Set {name} again, "
                "or set password.encoder.old.secret",
                name=name, path=path,
            )  # fmt: skip
        usable = {}
        for name, value in decoded.items():
            try:
                usable.update(self._settings.check_dynamic({name: value}))
            except ConfigError as error:
                # Another release, or an operator, wrote it. The broker has to start nevertheless.
                log.warn(
                    "Not using {name} in {path}: {error}. Set it again, or delete it",
                    name=name, path=path, error=str(error),
                )  # fmt: skip
        return usable

    async def _write(
        self, broker: int | None, changes: Sequence[ConfigChange] | None, configs: Mapping[str, str], dry: bool
    ) -> None:
        async def change(stored: Mapping[str, str]) -> Mapping[str, str] | None:
            current, failed = self._passwords.decode(stored)
            after = await self._checked(
                broker, configs if changes is None else apply_changes(current, changes, broker_setting)
            )
            kept = {} if changes is None else {name: stored[name] for name in failed if name not in after}
            try:
                encoded = self._passwords.encode({**kept, **after}, stored)
            except ConfigError as error:
                raise InvalidConfig(str(error)) from error
            return None if dry else encoded

        await self._store.ensure(BROKER_CONFIGS)
        await change_configs(self._store, self._feed, broker_config_path(broker), change)

    async def _checked(self, broker: int | None, configs: Mapping[str, str]) -> dict[str, str]:
        try:
            checked = self._settings.check_dynamic(configs, all_brokers=broker is None)
            check_cleaner(checked)
            check_way_in(checked, len(self._settings.listeners))
            if broker is None or broker == self._node_id:
                layers = (checked, self._mine) if broker is None else (self._all, checked)
                await self.check(self._settings.try_dynamic(*layers)[1])
        except ConfigError as error:
            raise InvalidConfig(str(error)) from error
        return checked


async def change_configs(
    store: IMetadataStore,
    feed: ChangeFeed,
    path: str,
    change: Callable[[Mapping[str, str]], Awaitable[Mapping[str, str] | None]],
    decode: Decode = decode_configs,
) -> None:
    """Replace the settings in a node. Raises InvalidChange if others keep changing the node.

    change: called with the present settings. It returns the settings to store, or None to write nothing. It is called
        again if another writer came first.
    """
    for _ in range(ATTEMPTS):
        before, version = await read_configs(store, path, decode)
        after = await change(before)
        if after is None:
            return
        try:
            await feed.write([write_configs(path, after, version)], [path])
        except (BadVersion, NodeExists, NoNode):
            continue
        return
    raise InvalidChange("the settings are being changed by another request, try again")


async def read_configs(
    store: IMetadataStore, path: str, decode: Decode = decode_configs
) -> tuple[dict[str, str], int | None]:
    """Return the settings in a node, and its version; ({}, None) if the node does not exist."""
    try:
        node = await store.get(path)
    except NoNode:
        return {}, None
    return decode(path, node.data), node.stat.version


def write_configs(path: str, configs: Mapping[str, str], version: int | None) -> Operation:
    """Return the operation that replaces settings.

    version: the version that `read_configs` returned.
    """
    data = encode_configs(configs)
    return Create(path, data) if version is None else SetData(path, data, version)


def _members(text: str) -> list[str]:
    return [member.strip() for member in text.split(",") if member.strip()]
