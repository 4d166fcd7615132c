"""The settings: their tables, files, and the order in which values override each other.

Reading guide: `broker` and `topic` are the tables; `values` is what one setting is; `listeners` and `source` read
addresses and files; `settings` is what a broker holds. Imports nothing of the project but `errors`.
"""

from pylogd.config.broker import SETTINGS
from pylogd.config.listeners import Listener, parse_listeners
from pylogd.config.settings import ConfigEntry, ConfigSource, ConfigSynonym, Replaced, Settings
from pylogd.config.source import parse_assignments
from pylogd.config.topic import TOPIC_SETTINGS
from pylogd.config.values import ConfigError, ConfigType, Mode, Setting, Value

__all__ = [
    "SETTINGS",
    "TOPIC_SETTINGS",
    "ConfigEntry",
    "ConfigError",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "Listener",
    "Mode",
    "Replaced",
    "Setting",
    "Settings",
    "Value",
    "parse_assignments",
    "parse_listeners",
]
