"""The options that `pylogd broker` and `twistd pylogd` have in common, and the settings that they make.

Imports nothing but the settings: `--help` and an error in the settings must not wait for Twisted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pylogd.config import PROFILES, Settings, parse_assignments

CONFIG: Final = "Settings file (TOML)."
LISTEN: Final = (
    "Address to listen on, as HOST:PORT or a Twisted endpoint string (listeners). Port 0 picks a free port. Repeatable."
)
DATA: Final = "Data directory (log.dirs). Repeatable."
NODE_ID: Final = "Id of this broker, unique in its cluster (node.id)."
ADVERTISED: Final = "HOST:PORT that clients connect to (advertised.listeners)."
PROFILE: Final = (
    f"A ready set of settings: {', '.join(PROFILES)} (broker.profile). The file and --set override it. "
    "`pylogd settings --profile NAME` lists it."
)
SET: Final = "Any setting; overrides the file. Repeatable. `pylogd settings` lists all."


def load_settings(
    config: Path | None,
    *,
    listen: Sequence[str] = (),
    data: Sequence[str] = (),
    node_id: str | None = None,
    advertised: str | None = None,
    profile: str | None = None,
    assignments: Iterable[str] = (),
) -> Settings:
    """Return the settings of a file, overridden by the settings of the command line. Raises ConfigError.

    `assignments` are NAME=VALUE words. An option of its own, such as `listen`, overrides one of them.
    """
    options = {
        "listeners": ",".join(listen),
        "log.dirs": ",".join(data),
        "node.id": node_id,
        "advertised.listeners": advertised,
        "broker.profile": profile,
    }
    overrides = {**parse_assignments(assignments), **{name: value for name, value in options.items() if value}}
    return Settings.load(config, overrides)
