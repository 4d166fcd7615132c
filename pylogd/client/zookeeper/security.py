"""Read how to secure a consumer's connection to ZooKeeper, from settings with the names of a broker's settings.

Without credentials everybody can change the nodes that a consumer makes. `zookeeper.set.acl` protects the nodes; then
all members of a group need the same credentials.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogd.config.values import ConfigError
from pylogd.config.zookeeper import ZooKeeperSecurity, parse_security


def connection_security(settings: Mapping[str, str]) -> ZooKeeperSecurity:
    """Return the options that settings such as `zookeeper.ssl.client.enable` describe.

    Raises ValueError, whose text names the setting and never repeats a secret.
    """
    try:
        return parse_security(settings)
    except ConfigError as error:
        raise ValueError(str(error)) from None
