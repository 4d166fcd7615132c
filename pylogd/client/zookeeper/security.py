"""How a consumer's connection to ZooKeeper is secured, from settings with the names that a broker's have.

Without credentials the nodes that a consumer makes can be changed by everybody. `zookeeper.set.acl` protects them; then
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
