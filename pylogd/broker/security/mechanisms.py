"""Make the SASL mechanisms of a listener from its settings (`credentials.mechanisms` has the mechanisms).

If a setting can be given for a mechanism on a listener (`listener.name.<listener>.<mechanism>.<setting>`), this value
comes first, then the listener's value, then the broker's.

Rules: a mechanism that can't be made ends the start with a ConfigError that names the setting, but no credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pylogd.broker.security.authentication import AuthenticationLimits
from pylogd.config import ConfigError
from pylogd.credentials.conversation import MechanismUnavailable, ServerMechanism
from pylogd.credentials.mechanisms import MECHANISMS, WrongSetting
from pylogd.credentials.scram import ScramUsers

ENABLED = "sasl.enabled.mechanisms"


class ListenerSettings(Protocol):
    """The settings, as seen by a listener."""

    def __getitem__(self, name: str) -> Any:
        """Return the listener's own value, or else the broker's value."""

    def own(self, name: str) -> Any:
        """Return the listener's own value; None if it has none."""


class MechanismSettings:
    """The settings of one mechanism on a listener."""

    def __init__(self, values: ListenerSettings, mechanism: str) -> None:
        self._values = values
        self._prefix = f"{mechanism.lower()}."

    def __getitem__(self, name: str) -> Any:
        own = self._values.own(self._prefix + name)
        return self._values[name] if own is None else own


def make_mechanisms(values: ListenerSettings, users: ScramUsers) -> dict[str, ServerMechanism]:
    """Return the mechanisms that a listener offers, by name. Raises ConfigError.

    users: the users with SCRAM credentials.

    May read files and take a while.
    """
    enabled: tuple[str, ...] = values[ENABLED]
    if not enabled:
        raise ConfigError(f"a SASL listener needs {ENABLED}, for example SCRAM-SHA-512", ENABLED)
    found: dict[str, ServerMechanism] = {}
    for name in enabled:
        try:
            found[name] = MECHANISMS[name].offer(MechanismSettings(values, name), users)
        except WrongSetting as error:
            raise ConfigError(str(error), error.setting) from None
        except MechanismUnavailable as error:
            raise ConfigError(f"{name} can't be offered: {error}", ENABLED) from error
    return found


def authentication_limits(values: ListenerSettings, mechanisms: Mapping[str, object]) -> AuthenticationLimits:
    """Return the limits of a listener that offers these mechanisms."""
    return AuthenticationLimits(
        {name: MechanismSettings(values, name)["connections.max.reauth.ms"] for name in mechanisms},
        values["connection.failed.authentication.delay.ms"],
    )
