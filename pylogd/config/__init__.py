"""The settings: their tables, files, and the order in which values override each other.

Reading guide: `broker` and `topic` are the tables; `values` defines one setting; `lookup` finds a setting by its name;
`listeners` and `source` read addresses and files; `settings` has the effective values of a broker. The only package of
the project that it imports is `errors`.
"""

from pylogd.config.broker import SETTINGS
from pylogd.config.group import GROUP_SETTINGS
from pylogd.config.listeners import Listener, SecurityProtocol, parse_listeners
from pylogd.config.lookup import ListenerValues, broker_setting
from pylogd.config.metadata_store import has_peers
from pylogd.config.profiles import PROFILES, Profile
from pylogd.config.settings import ConfigEntry, ConfigSource, ConfigSynonym, Replaced, Settings
from pylogd.config.source import parse_assignments
from pylogd.config.tls import TlsOptions
from pylogd.config.topic import TOPIC_SETTINGS, internal_segment_size
from pylogd.config.values import ConfigError, ConfigType, Mode, Setting, Value

__all__ = [
    "GROUP_SETTINGS",
    "PROFILES",
    "SETTINGS",
    "TOPIC_SETTINGS",
    "ConfigEntry",
    "ConfigError",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "Listener",
    "ListenerValues",
    "Mode",
    "Profile",
    "Replaced",
    "SecurityProtocol",
    "Setting",
    "Settings",
    "TlsOptions",
    "Value",
    "broker_setting",
    "has_peers",
    "internal_segment_size",
    "parse_assignments",
    "parse_listeners",
]
