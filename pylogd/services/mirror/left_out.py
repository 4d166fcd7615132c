"""Settings that a target refuses: its topics are copied without them.

A refused setting does not stop a topic, since the target may be of another release or of another kind. If a target
refuses the settings of a topic, each setting is tried alone, and refused ones are left out. They are named in the log,
and tried again when the source changes their values, or after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from pylogd.base.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

#: Errors that concern values of settings.
REFUSALS: Final = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST, ErrorCode.POLICY_VIOLATION})
#: Tries a setting at the target. Raises KafkaError.
Try = Callable[[str, str | None], Awaitable[None]]


class LeftOut:
    """The settings that the target of one route refuses, by its topics."""

    def __init__(self, route: str) -> None:
        """`route` is the name of the route, for the log."""
        self._route = route
        self._refused: dict[tuple[str, str], str | None] = {}

    def without(self, topic: str, configs: Mapping[str, str]) -> dict[str, str]:
        """Return settings for a topic of the target, without those that the target has refused with the same value."""
        return {
            name: value
            for name, value in configs.items()
            if (topic, name) not in self._refused or self._refused[topic, name] != value
        }

    def names(self, topic: str) -> set[str]:
        """Return the names of the settings that were left out for a topic of the target."""
        return {name for known, name in self._refused if known == topic}

    async def find(self, topic: str, changes: Mapping[str, str | None], attempt: Try) -> None:
        """Try each change of a topic alone, and record the refused ones. Raises KafkaError for other errors."""
        for name, value in changes.items():
            try:
                await attempt(name, value)
            except KafkaError as error:
                if error.code not in REFUSALS:
                    raise
                self._refused[topic, name] = value
                self._tell(topic, name, value, error)
            else:
                self._refused.pop((topic, name), None)

    def refuse(self, topic: str, configs: Mapping[str, str], error: KafkaError) -> None:
        """Record that the target refuses settings of a topic together, but takes each of them alone."""
        for name, value in configs.items():
            self._refused[topic, name] = value
            self._tell(topic, name, value, error)

    def keep(self, topics: Iterable[str]) -> None:
        """Forget all topics of the target except these."""
        kept = set(topics)
        self._refused = {key: value for key, value in self._refused.items() if key[0] in kept}

    def _tell(self, topic: str, name: str, value: str | None, error: KafkaError) -> None:
        _log.warning(
            "route %s: topic %s is copied without the setting %s = %s, which the target refuses: %s. To hide this "
            "warning, name the setting in configs.exclude", self._route, topic, name, value, error,
        )  # fmt: skip
