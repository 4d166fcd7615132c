"""The place of a broker's metadata: ZooKeeper, a file, or the socket of another process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pylogd.config.lookup import TypedValues
from pylogd.config.values import ConfigError

SQLITE_SCHEME: Final = "sqlite:"
UNIX_SCHEME: Final = "unix:"
#: The file of the embedded store in the first of `log.dirs`, unless `metadata.store` names another file.
METADATA_FILE: Final = "metadata.sqlite"
_SETTING: Final = "metadata.store"


def check_store(url: str | None) -> None:
    """Check a value of `metadata.store`. Raises ConfigError."""
    if url is not None and not any(url.startswith(scheme) and url != scheme for scheme in (SQLITE_SCHEME, UNIX_SCHEME)):
        allowed = "sqlite:/path/to/file or unix:/path/to/socket"
        raise ConfigError(f'{_SETTING} = "{url}" is not allowed: write {allowed}', _SETTING)


def store_file(settings: TypedValues) -> Path | None:
    """Return the file of the embedded metadata store; None if another process serves it."""
    url = settings.text(_SETTING)
    if url is None:
        return Path(settings.words("log.dirs")[0]) / METADATA_FILE
    return None if url.startswith(UNIX_SCHEME) else Path(url.removeprefix(SQLITE_SCHEME))


def store_socket(settings: TypedValues) -> str | None:
    """Return the path of the socket at which another process serves the store; None if this process opens the store."""
    url = settings.text(_SETTING)
    return url.removeprefix(UNIX_SCHEME) if url is not None and url.startswith(UNIX_SCHEME) else None


def has_peers(settings: TypedValues) -> bool:
    """Return whether there may be other brokers, because the metadata store is not this process's own."""
    return bool(settings.text("zookeeper.connect")) or store_socket(settings) is not None
