"""A setting: its type, its default, the values that it accepts, and how they are parsed and formatted.

Strategy: the class `Setting` checks and converts one value; `tables` only lists instances of it; `settings` combines
layers of values. A value may come as a TOML value, or as the text of a command line or of an
AlterConfigs request; both become the same Python value.

Rules: a bad value raises `ConfigError` with one line that names the setting, the value and the allowed values. A
default is written once, in its table.

Must not know: files, the reactor, the readers of a setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

from pylogd.base.errors import PylogdError

#: A value in the program's form. LIST settings are tuples; None means that a setting is not set.
Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_BOOLEANS: Final = {"true": True, "false": False}


class ConfigError(PylogdError):
    """A setting that is unknown, malformed, out of range, or in conflict with another.

    `str()` is one line for a user. `setting` is the setting's name; None if the error concerns several settings.
    """

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class ConfigType(IntEnum):
    """Types with the codes of DescribeConfigs (Kafka's `DescribeConfigsResponse.ConfigType`)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Mode(Enum):
    """When a changed value takes effect."""

    READ_ONLY = "read-only"  # the value takes effect at the next start
    DYNAMIC = "dynamic"  # it takes effect at once, set for one broker or for all


_INTEGER_RANGES: Final = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}


class Setting(NamedTuple):
    """One setting.

    minimum, maximum: the inclusive limits of numbers.
    choices: the allowed texts, or members of lists.
    nullable: whether the setting may be unset, which is None.
    synonyms: the broker settings that supply the value of an unset topic setting, or of an unset setting in finer
    units, in order of precedence, each with the factor that converts its value to the unit of this setting.
    per_listener: whether a listener may have its own value, in the setting `listener.name.<listener>.<name>`.
    special: numbers outside the limits that are accepted too.
    internal: whether the setting is for tests; it is described only if it is set.
    per_broker: whether it can be set at run time for single brokers, but not for all.
    """

    name: str
    type: ConfigType
    default: Value
    doc: str
    group: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    mode: Mode = Mode.READ_ONLY
    nullable: bool = False
    synonyms: tuple[tuple[str, int], ...] = ()
    per_listener: bool = False
    special: tuple[int, ...] = ()
    internal: bool = False
    per_broker: bool = False

    @property
    def attribute(self) -> str:
        """The name as a Python identifier: `segment.bytes` is `segment_bytes`."""
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        """The accepted values, in words, for messages and for the reference."""
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        if self.choices:
            words = ", ".join(choice or "(empty)" for choice in self.choices)
            return f"any of {words}, separated by commas" if self.type is ConfigType.LIST else f"one of {words}"
        if self.type in _INTEGER_RANGES or self.type is ConfigType.DOUBLE:
            noun = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
            low, high = self._bounds()
            if self.maximum is None and self.type in (ConfigType.LONG, ConfigType.DOUBLE):
                return f"{noun}, at least {low}" if self.minimum is not None else noun
            return f"{noun} from {low} to {high}{''.join(f', or {number}' for number in self.special)}"
        return "a list separated by commas" if self.type is ConfigType.LIST else "text"

    @property
    def unbounded(self) -> Setting:
        """The setting without limits, for values that were stored when the limits were wider."""
        return self._replace(minimum=None, maximum=None)

    def parse(self, raw: object) -> Value:
        """Return the typed value of a TOML value or of text. Raises ConfigError."""
        if raw is None:
            if self.nullable:
                return None
            raise self._error(raw)
        if self.type is ConfigType.BOOLEAN:
            return self._parse_boolean(raw)
        if self.type in _INTEGER_RANGES:
            return self._check_range(self._parse_integer(raw), raw)
        if self.type is ConfigType.DOUBLE:
            return self._check_range(self._parse_double(raw), raw)
        if self.type is ConfigType.LIST:
            return self._parse_list(raw)
        if not isinstance(raw, str) or (self.choices and raw not in self.choices):
            raise self._error(raw)
        return raw

    def format(self, value: Value) -> str | None:
        """Return a value as text, in the spelling of DescribeConfigs: `parse(format(v)) == v`."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def _parse_boolean(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.strip().lower() in _BOOLEANS:
            return _BOOLEANS[raw.strip().lower()]
        raise self._error(raw)

    def _parse_integer(self, raw: object) -> int:
        if isinstance(raw, int) and not isinstance(raw, bool):
            return raw
        # int() also accepts "1_000" and Unicode digits, and is slow for very long text, so the text is checked first.
        if isinstance(raw, str) and len(raw) <= 32:
            text = raw.strip()
            if text.isascii() and text.removeprefix("-").removeprefix("+").isdigit():
                try:
                    return int(text)
                except ValueError:  # a text such as "-+1"
                    raise self._error(raw) from None
        raise self._error(raw)

    def _parse_double(self, raw: object) -> float:
        if isinstance(raw, (int, float)) and not isinstance(raw, bool):
            return float(raw)
        if isinstance(raw, str):
            try:
                return float(raw)
            except ValueError:
                pass
        raise self._error(raw)

    def _parse_list(self, raw: object) -> tuple[str, ...]:
        if isinstance(raw, str):
            members: Sequence[object] = raw.split(",") if raw.strip() else []
        elif isinstance(raw, (list, tuple)):
            members = [part for member in raw for part in (member.split(",") if isinstance(member, str) else [member])]
        else:
            raise self._error(raw)
        out: list[str] = []
        for member in members:
            name = member.strip() if isinstance(member, str) else ""
            if not name or (self.choices and name not in self.choices):
                raise self._error(raw)
            out.append(name)
        return tuple(out)

    def _bounds(self) -> tuple[float, float]:
        low, high = _INTEGER_RANGES.get(self.type, (float("-inf"), float("inf")))
        return (low if self.minimum is None else self.minimum, high if self.maximum is None else self.maximum)

    def _check_range(self, value: int | float, raw: object) -> int | float:
        low, high = self._bounds()
        if not low <= value <= high and value not in self.special:  # this is true for NaN too
            raise self._error(raw)
        return value

    def _error(self, raw: object) -> ConfigError:
        shown = "(hidden)" if self.sensitive else repr(raw) if not isinstance(raw, str) else f'"{raw[:200]}"'
        return ConfigError(f"{self.name} = {shown} is not allowed: it must be {self.allowed}", self.name)


class Choice(NamedTuple):
    """The value of one broker setting in a profile, with the reason in one sentence."""

    name: str
    value: object
    why: str


class Profile(NamedTuple):
    """A named set of settings for a kind of cluster.

    purpose: the use of such a cluster, and its trade-offs.
    """

    name: str
    purpose: str
    choices: tuple[Choice, ...]

    @property
    def values(self) -> dict[str, object]:
        """The values by name of the setting."""
        return {choice.name: choice.value for choice in self.choices}
