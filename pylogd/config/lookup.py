"""Find a broker setting by its name, including settings for a single listener, and read values by name.

`listener.name.<listener>.<setting>` is a separate setting with the type and the rules of `<setting>`. The listener's
name is in lower case, as in Kafka. The name of a SASL mechanism may come between the listener and the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from pylogd.config.tables import PROFILES, SETTINGS, TOPIC_SETTINGS
from pylogd.config.values import Choice, ConfigError, Setting, Value

LISTENER_PREFIX: Final = "listener.name."
_MOST_NAMES: Final = 1000
#: Older or alternative names -> the names here; used only for hints in messages.
FORMER_NAMES: Final[Mapping[str, str]] = MappingProxyType({"broker.id": "node.id", "log.dir": "log.dirs"})
_PER_LISTENER: Final = sorted(
    (setting for setting in SETTINGS.values() if setting.per_listener), key=lambda setting: -len(setting.name)
)


def listener_setting(listener: str, name: str) -> str:
    """Return the name of the setting with a listener's own value for the setting `name`."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{name}"


@lru_cache(_MOST_NAMES)
def broker_setting(name: str) -> Setting | None:
    """Return the broker setting with this name; None if it does not exist."""
    found = SETTINGS.get(name)
    if found is None and name.startswith(LISTENER_PREFIX):
        rest = name[len(LISTENER_PREFIX) :]
        for base in _PER_LISTENER:
            if rest.endswith(f".{base.name}") and len(rest) > len(base.name) + 1 and rest == rest.lower():
                return base._replace(name=name, default=None, nullable=True, synonyms=())
    return found


def known(find: Callable[[str], Setting | None], names: Mapping[str, Setting], name: str, what: str) -> Setting:
    """Return the setting with this name. Raises ConfigError with the most similar one of `names` as a hint."""
    setting = find(name)
    if setting is not None:
        return setting
    import difflib  # noqa: PLC0415 - for this error

    nearest = [FORMER_NAMES[name]] if name in FORMER_NAMES else difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest and nearest[0] in names else ""
    raise ConfigError(f'unknown {what} "{name[:200]}"{hint}', name)


def known_broker_setting(name: str) -> Setting:
    """Return the broker setting with this name. Raises ConfigError if it does not exist."""
    return known(broker_setting, SETTINGS, name, "setting")


def choices_of(setting: str) -> dict[str, Choice]:
    """Return the profiles' choices for a setting, by the profile's name."""
    return {
        profile.name: choice for profile in PROFILES.values() for choice in profile.choices if choice.name == setting
    }


def internal_segment_size(size: int) -> dict[str, str]:
    """Return the settings of an internal topic that give it segments of `size` bytes, even if this is very small."""
    lowest = TOPIC_SETTINGS["segment.bytes"].minimum
    name = "segment.bytes" if lowest is None or size >= lowest else "internal.segment.bytes"
    return {name: str(size)}


class TypedValues:
    """Values of settings by name, for type checkers. A subclass looks them up."""

    def __getitem__(self, name: str) -> Value:
        raise NotImplementedError

    def integer(self, name: str) -> int:
        """Return the value of an INT, SHORT or LONG setting that can't be unset."""
        value = self[name]
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        """Return the value of a DOUBLE setting."""
        value = self[name]
        assert isinstance(value, float), name
        return value

    def flag(self, name: str) -> bool:
        """Return the value of a BOOLEAN setting."""
        value = self[name]
        assert isinstance(value, bool), name
        return value

    def text(self, name: str) -> str | None:
        """Return the value of a STRING setting; None if unset."""
        value = self[name]
        assert value is None or isinstance(value, str), name
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return the members of a LIST setting; () if unset."""
        value = self[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()


class ListenerValues(TypedValues):
    """The settings for one listener: its own values override the broker's."""

    def __init__(self, values: Mapping[str, Value], listener: str) -> None:
        """Pass the effective settings by name, and the listener's name."""
        self._values = values
        self._listener = listener

    def __getitem__(self, name: str) -> Value:
        own = self.own(name)
        return self._values[name] if own is None else own

    def own(self, name: str) -> Value:
        """Return the listener's own value; None if it has none."""
        return self._values.get(listener_setting(self._listener, name))
