"""The settings: their tables, files, and the order in which values override each other.

Reading guide: `broker.toml`, `topic.toml`, `group.toml`, `client_metrics.toml` and `profiles.toml` are the tables, from
which `tools/generate_settings.py` writes `tables`; `values` defines one setting; `lookup` finds a setting by its name;
`source` reads files; `settings` has the effective values of a broker; `checks` has the rules for several settings
together; the other modules parse values of one subject. The only package of the project that this one imports is
`errors`.
"""

from pylogd.config.listeners import Listener, SecurityProtocol, parse_listeners
from pylogd.config.lookup import ListenerValues, broker_setting, internal_segment_size
from pylogd.config.metadata_store import has_peers
from pylogd.config.settings import ConfigEntry, ConfigSource, ConfigSynonym, Replaced, Settings
from pylogd.config.source import parse_assignments
from pylogd.config.tables import GROUP_SETTINGS, PROFILES, SETTINGS, TOPIC_SETTINGS
from pylogd.config.tls import TlsOptions
from pylogd.config.values import ConfigError, ConfigType, Mode, Profile, Setting, Value

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
