"""Settings of topics for tiered storage and share groups, which brokers of pylogd do not have.

Strategy: clients, operators and mirrors set them for all of their topics, mostly to values that mean "not used". So
every value that requests nothing is accepted, and no topic is refused. A value that requests something that a broker
can't do is refused, and the error gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pylogd.config.values import ConfigError, ConfigType, Mode, Setting

_UNUSED: Final = "Accepted for tools that set it, but without effect: there is no tiered storage."


def _setting(name: str, kind: ConfigType, default: bool | int, doc: str, minimum: int | None = None) -> Setting:
    return Setting(name, kind, default, doc, "Topic", minimum=minimum, mode=Mode.DYNAMIC)


#: Kafka's settings of a topic that have no effect here.
UNUSED_SETTINGS: Final = (
    _setting(
        "errors.deadletterqueue.group.enable", ConfigType.BOOLEAN, False,
        "Accepted for tools that set it, but without effect: there are no share groups, which would write records to "
        "the topic that could not be processed.",
    ),
    _setting("local.retention.bytes", ConfigType.LONG, -2, _UNUSED, -2),
    _setting("local.retention.ms", ConfigType.LONG, -2, _UNUSED, -2),
    _setting("remote.copy.lag.bytes", ConfigType.LONG, -1, _UNUSED, -1),
    _setting("remote.copy.lag.ms", ConfigType.LONG, 0, _UNUSED, -1),
    _setting("remote.log.copy.disable", ConfigType.BOOLEAN, False, _UNUSED),
    _setting("remote.log.delete.on.disable", ConfigType.BOOLEAN, False, _UNUSED),
    _setting(
        "remote.storage.enable", ConfigType.BOOLEAN, False,
        "Accepted if it is `false`: there is no tiered storage.",
    ),
)  # fmt: skip


def check_unused(values: Mapping[str, str]) -> None:
    """Raise ConfigError if a topic's settings request something that brokers do not have.

    values: the settings as text.
    """
    if values.get("remote.storage.enable") == "true":
        raise ConfigError(
            "remote.storage.enable = true is not possible: pylogd has no tiered storage. Set it to false, or leave it "
            "out; retention.ms and retention.bytes then hold for all records",
            "remote.storage.enable",
        )
