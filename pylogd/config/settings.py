"""The effective settings: layers of values that override the tables' defaults.

Strategy: there are five layers, and the first that has a value decides: dynamic for this broker, dynamic for all
brokers, static (command line over file), the profile, default. The effective values are computed once, at load and at
each dynamic change, so that a look-up is one dict access. A setting that is unset takes the value of its synonym,
converted to its unit (`log.retention.ms` is `log.retention.hours` in milliseconds).

Rules: all values are checked before any is used; a change that fails leaves the settings unchanged. The file may be
reloaded while the broker runs (`read_again`, `replace_static`); this applies only settings that may change at run time.

Must not know: the store of dynamic and topic overrides (`metadata.configs`), listeners, the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pylogd.config.checks import check_lag, check_start, check_topic_values, check_values, cordoned_directories
from pylogd.config.group import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, check_bounds
from pylogd.config.listeners import Listener, inter_broker_listener, listeners_of, parse_advertised
from pylogd.config.lookup import ListenerValues, TypedValues, known, known_broker_setting
from pylogd.config.source import read_file
from pylogd.config.tables import BOUNDS, GROUP_SETTINGS, PROFILES, SETTINGS, TOPIC_SETTINGS
from pylogd.config.tls import TlsOptions, tls_options
from pylogd.config.values import ConfigError, ConfigType, Mode, Setting, Value
from pylogd.config.zookeeper import ZooKeeperSecurity, zookeeper_security

ChangeListener = Callable[[frozenset[str]], None]


class ConfigSource(IntEnum):
    """The source of a value, with the codes of DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


#: Values by name from each source, in order of precedence.
Layers: TypeAlias = Sequence[tuple[ConfigSource, Mapping[str, Value]]]


class ConfigSynonym(NamedTuple):
    """A setting and a source that could supply the value of another setting."""

    name: str
    value: str | None
    source: ConfigSource


class Replaced(NamedTuple):
    """The result of reloading static settings, by name.

    changed: the effective values before and after.
    pending: the effective values, and those of the next start.
    overruled: settings whose new static value has no effect, because a dynamic value overrides it.
    """

    changed: Mapping[str, tuple[Value, Value]]
    pending: Mapping[str, tuple[Value, Value]]
    overruled: frozenset[str]


class ConfigEntry(NamedTuple):
    """A setting in the form of DescribeConfigs.

    `value` is None if unset or sensitive. Synonyms are in order of precedence; the first supplies the effective value.
    """

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: ConfigType
    doc: str
    synonyms: tuple[ConfigSynonym, ...]


class Settings(TypedValues):
    """All settings of one broker.

    Read one with `settings["log.segment.bytes"]` or, for type checkers, with `integer(name)`, `number(name)`,
    `flag(name)`, `text(name)` or `words(name)`.
    """

    def __init__(self, file: Mapping[str, object] | None = None, overrides: Mapping[str, object] | None = None) -> None:
        """Check the given values; `overrides` take precedence over `file`. Raises ConfigError."""
        self._path: Path | None = None
        self._overrides = dict(overrides or {})
        static = _parse_all(file or {})
        self._from_command_line = frozenset(overrides or {})
        static.update(_parse_all(overrides or {}))
        self._profile = _profile_of(static)
        self._layers: Layers = _stack({}, {}, static, self._profile)
        self._static = static
        self._subscribers: list[ChangeListener] = []
        self._effective = _resolve(self._layers)
        self._topic_defaults = _topic_defaults(self._layers)
        check_start(self._effective)

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
        """Return the settings of an optional TOML file, with overrides from the command line. Raises ConfigError."""
        if path is None:
            return cls(None, overrides)
        settings = cls(read_file(Path(path)), overrides)
        settings._path = Path(path).absolute()
        return settings

    @property
    def path(self) -> Path | None:
        """The file that was loaded; None if there was none."""
        return self._path

    def read_again(self) -> Settings:
        """Load the same file with the same command line again. Blocks on the disk. Raises ConfigError."""
        return Settings.load(self._path, self._overrides)

    def with_overrides(self, more: Mapping[str, object]) -> Settings:
        """Load the same file with the same command line and more overrides. Blocks on the disk. Raises ConfigError."""
        return Settings.load(self._path, {**self._overrides, **more})

    def given(self) -> dict[str, str]:
        """Return the settings of the file and of the command line, by name, as text."""
        texts = {name: known_broker_setting(name).format(value) for name, value in self._static.items()}
        return {name: text for name, text in texts.items() if text is not None}

    def __getitem__(self, name: str) -> Any:
        return self._effective[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._effective)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners, each with its Twisted endpoint description."""
        return listeners_of(self._effective)

    @property
    def inter_broker_listener(self) -> Listener:
        """The listener to which other brokers connect."""
        return inter_broker_listener(self._effective, self.listeners)

    def for_listener(self, name: str) -> ListenerValues:
        """Return the present settings of one listener: its own values override the broker's."""
        return ListenerValues(self._effective, name)

    def tls_options(self, listener: str) -> TlsOptions:
        """Return the present TLS settings of a listener. Raises ConfigError if they are incomplete."""
        return tls_options(self.for_listener(listener).__getitem__, listener)

    @property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """The advertised addresses, by listener name; empty means the addresses of the listeners."""
        return parse_advertised(self.words("advertised.listeners"), self.listeners)

    @property
    def zookeeper_security(self) -> ZooKeeperSecurity:
        """Credentials, TLS and ACLs of the ZooKeeper connection."""
        return zookeeper_security(self._effective)

    def origin(self, name: str) -> str:
        """Return the source of the effective value, in words for a user."""
        found = self._candidates(known_broker_setting(name))[0]
        if found.source is ConfigSource.STATIC_BROKER:
            if found.name not in self._static:
                return f"profile {self.text('broker.profile')}"
            return "command line" if found.name in self._from_command_line else "configuration file"
        return "default" if found.source is ConfigSource.DEFAULT else "changed at run time"

    # -- topics

    def check_topic(self, overrides: Mapping[str, str | None]) -> dict[str, str]:
        """Return the overrides of a topic in canonical spelling.

        Raises ConfigError for an unknown name, a bad value, or values that contradict each other or the broker's.
        """
        checked: dict[str, str] = {}
        for name, raw in overrides.items():
            setting = known(TOPIC_SETTINGS.get, TOPIC_SETTINGS, name, "topic setting")
            checked[name] = setting.format(setting.parse(raw)) or ""
        check_topic_values(checked)
        values = self.topic_config(checked)
        check_lag(values, "min.compaction.lag.ms", "max.compaction.lag.ms")
        return checked

    def topic_config(self, overrides: Mapping[str, str]) -> dict[str, Value]:
        """Return every topic setting by name, typed: the topic's overrides, or else the broker's values.

        Unknown names are ignored, because a newer release may have stored them. Limits are ignored too, because an
        older release may have had wider limits. Raises ConfigError for a bad value.
        """
        values = dict(self._topic_defaults)
        for name, raw in overrides.items():
            setting = TOPIC_SETTINGS.get(name)
            if setting is not None:
                values[name] = setting.unbounded.parse(raw)
        return values

    def log_config_values(self, overrides: Mapping[str, str]) -> dict[str, Value]:
        """Return `topic_config` with names as Python identifiers, such as `segment_bytes`."""
        return {name.replace(".", "_"): value for name, value in self.topic_config(overrides).items()}

    def describe_topic(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        """Return every topic setting in the form of DescribeConfigs."""
        values = self.topic_config(overrides)
        entries = []
        for name, setting in TOPIC_SETTINGS.items():
            if setting.internal and name not in overrides:
                continue
            synonyms = [
                synonym
                for broker_name, _ in setting.synonyms[:1]
                for synonym in self._candidates(SETTINGS[broker_name])
                if synonym.value is not None
            ]
            if name in overrides:
                synonyms.insert(0, ConfigSynonym(name, setting.format(values[name]), ConfigSource.TOPIC))
            entries.append(_entry(setting, setting.format(values[name]), synonyms))
        return entries

    # -- groups

    def check_group(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """Return the overrides of a group in canonical spelling.

        Raises ConfigError for an unknown name, a bad value, or a value outside the broker's limits.
        """
        checked: dict[str, str] = {}
        for name, raw in overrides.items():
            setting = known(GROUP_SETTINGS.get, GROUP_SETTINGS, name, "group setting")
            checked[name] = setting.format(setting.parse(raw)) or ""
            check_bounds(name, int(checked[name]), *map(self.integer, BOUNDS[name]))
        session, interval = (self.group_value(checked, name) for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL))
        if checked and session <= interval:
            text = f"{SESSION_TIMEOUT} = {session} must be longer than {HEARTBEAT_INTERVAL} = {interval}"
            raise ConfigError(text, SESSION_TIMEOUT)
        return checked

    def group_value(self, overrides: Mapping[str, str], name: str) -> int:
        """Return the value of a group's setting: its override, within the broker's limits, or the broker's value."""
        own = overrides.get(name)
        if own is None:
            return self.integer(GROUP_SETTINGS[name].synonyms[0][0])
        low, high = map(self.integer, BOUNDS[name])
        return max(low, min(int(own), high))

    def describe_group(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        """Return every setting of a group in the form of DescribeConfigs."""
        entries = []
        for name, setting in GROUP_SETTINGS.items():
            synonyms = self._candidates(SETTINGS[setting.synonyms[0][0]])
            if name in overrides:
                synonyms = [ConfigSynonym(name, overrides[name], ConfigSource.GROUP), *synonyms]
            entries.append(_entry(setting, str(self.group_value(overrides, name)), synonyms))
        return entries

    # -- this broker

    def describe(self) -> list[ConfigEntry]:
        """Return every broker setting in the form of DescribeConfigs."""
        entries = []
        for setting in map(known_broker_setting, self._effective):
            synonyms = self._candidates(setting)
            if setting.internal and len(synonyms) == 1:
                continue
            own = [synonym for synonym in synonyms if synonym.name == setting.name]
            entries.append(_entry(setting, own[0].value, [s for s in synonyms if s.value is not None], own[0].source))
        return entries

    @staticmethod
    def check_dynamic(overrides: Mapping[str, str | None], *, all_brokers: bool = False) -> dict[str, str]:
        """Return dynamic broker settings in canonical spelling.

        all_brokers: whether they are for all brokers.

        Raises ConfigError for a setting that is unknown, that needs a restart, or that has a bad value.
        """
        checked: dict[str, str] = {}
        for name, raw in overrides.items():
            setting = known_broker_setting(name)
            if setting.mode is not Mode.DYNAMIC:
                raise ConfigError(f"{name} can't be changed while the broker runs", name)
            if all_brokers and setting.per_broker:
                raise ConfigError(f"{name} can't be set for all brokers: set it for each, by its id", name)
            if raw is None:
                raise ConfigError(f"{name} needs a value", name)
            checked[name] = setting.format(setting.parse(raw)) or ""
        return checked

    @property
    def cordoned_directories(self) -> frozenset[str]:
        """The absolute paths of the data directories that take no new partitions (`cordoned.log.dirs`)."""
        return cordoned_directories(self._effective)

    def set_dynamic(self, all_brokers: Mapping[str, str], this_broker: Mapping[str, str]) -> frozenset[str]:
        """Replace the dynamic layers and notify subscribers. Return the names whose effective value changed.

        Raises ConfigError, with nothing changed, if a value is bad.
        """
        return self._apply(*self.try_dynamic(all_brokers, this_broker))

    def replace_static(self, fresh: Settings) -> Replaced:
        """Apply the static values of `fresh` that may change at run time, and notify subscribers.

        Raises ConfigError, with nothing changed, if they contradict the dynamic values.
        """
        dynamic = {
            name for name in {*self._effective, *fresh._effective} if known_broker_setting(name).mode is Mode.DYNAMIC
        }
        static = {name: value for name, value in self._static.items() if name not in dynamic}
        static.update((name, value) for name, value in fresh._static.items() if name in dynamic)
        before, old = self._effective, self._static
        (_, own), (_, shared) = self._layers[:2]
        layers, effective = _checked_layers(own, shared, static, self._profile)
        self._static = static
        changed = self._apply(layers, effective)
        moved = {name for name in dynamic if static.get(name) != old.get(name)}
        return Replaced(
            {name: (before.get(name), effective.get(name)) for name in sorted(changed)},
            {
                name: (before.get(name), fresh._effective.get(name))
                for name in {**before, **fresh._effective}
                if name not in dynamic and fresh._effective.get(name) != before.get(name)
            },
            frozenset(name for name in moved if name in own or name in shared),
        )

    def _apply(self, layers: Layers, effective: dict[str, Value]) -> frozenset[str]:
        before = self._effective
        changed = frozenset(name for name in {**before, **effective} if effective.get(name) != before.get(name))
        self._layers, self._effective = layers, effective
        self._topic_defaults = _topic_defaults(layers)
        for subscriber in list(self._subscribers):
            subscriber(changed)
        return changed

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call `listener` each time settings are applied at run time, with the names of the changed settings.

        There may be no names: the same values were set again, which has certificates read again. Return a function that
        ends the subscription.
        """
        self._subscribers.append(listener)
        return lambda: self._subscribers.remove(listener)

    def try_dynamic(
        self, all_brokers: Mapping[str, str], this_broker: Mapping[str, str]
    ) -> tuple[Layers, dict[str, Value]]:
        """Return the settings that `set_dynamic` would apply. Raises the same errors."""
        ignored = self.words("ignored.dynamic.settings")
        own, shared = (
            {name: value for name, value in _parse_all(self.check_dynamic(layer)).items() if name not in ignored}
            for layer in (this_broker, all_brokers)
        )
        return _checked_layers(own, shared, self._static, self._profile)

    def _candidates(self, setting: Setting) -> list[ConfigSynonym]:
        names = [setting.name, *(name for name, _ in setting.synonyms)]
        return [
            ConfigSynonym(name, known_broker_setting(name).format(values[name]), source)
            for source, values in self._layers
            for name in names
            if name in values
        ]


def _parse_all(raw: Mapping[str, object]) -> dict[str, Value]:
    return {name: known_broker_setting(name).parse(value) for name, value in raw.items()}


def _profile_of(static: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values of the profile that the static settings name."""
    name = static.get("broker.profile")
    return _parse_all(PROFILES[name].values) if isinstance(name, str) else {}


def _stack(
    broker: Mapping[str, Value],
    all_brokers: Mapping[str, Value],
    static: Mapping[str, Value],
    profile: Mapping[str, Value],
) -> Layers:
    return [
        (ConfigSource.DYNAMIC_BROKER, broker),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, all_brokers),
        (ConfigSource.STATIC_BROKER, static),
        (ConfigSource.STATIC_BROKER, profile),
        (ConfigSource.DEFAULT, {name: setting.default for name, setting in SETTINGS.items()}),
    ]


def _checked_layers(
    broker: Mapping[str, Value],
    all_brokers: Mapping[str, Value],
    static: Mapping[str, Value],
    profile: Mapping[str, Value],
) -> tuple[Layers, dict[str, Value]]:
    layers = _stack(broker, all_brokers, static, profile)
    effective = _resolve(layers)
    check_values(effective)
    return layers, effective


def _converted(value: Value, factor: int) -> Value:
    """Return a synonym's value in the unit of the setting that takes it. Negative numbers mean "no limit"."""
    if factor == 1 or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else -1


def _resolve_one(setting: Setting, layers: Layers) -> Value:
    names = [(setting.name, 1), *setting.synonyms]
    for _, values in layers:
        for name, factor in names:
            value = values.get(name)
            if value is not None:
                return _converted(value, factor)
    return setting.default


def _resolve(layers: Layers) -> dict[str, Value]:
    own = dict.fromkeys(name for _, values in layers for name in values if name not in SETTINGS)  # of single listeners
    settings = [*SETTINGS.values(), *map(known_broker_setting, sorted(own))]
    return {setting.name: _resolve_one(setting, layers) for setting in settings}


def _topic_defaults(layers: Layers) -> dict[str, Value]:
    return {name: _resolve_one(setting, layers) for name, setting in TOPIC_SETTINGS.items()}


def _entry(
    setting: Setting, value: str | None, synonyms: Sequence[ConfigSynonym], source: ConfigSource | None = None
) -> ConfigEntry:
    if source is None:
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT
    hidden = setting.sensitive
    return ConfigEntry(
        name=setting.name,
        value=None if hidden else value,
        source=source,
        read_only=setting.mode is Mode.READ_ONLY,
        sensitive=hidden,
        type=setting.type,
        doc=setting.doc,
        synonyms=tuple(ConfigSynonym(s.name, None, s.source) for s in synonyms) if hidden else tuple(synonyms),
    )
