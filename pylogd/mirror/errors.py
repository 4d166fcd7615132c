"""What can go wrong in a mirror, besides errors of brokers and of the metadata store."""

from __future__ import annotations

from pylogd.errors import PylogdError


class MirrorError(PylogdError):
    """Something about the mirror itself is wrong."""


class InvalidMirrorFile(MirrorError):
    """The file with the routes can't be used. The text says what to change, and where."""


class TopicRecreated(MirrorError):
    """A source topic was deleted and created again under its name: its id has changed."""


class NotAMember(MirrorError):
    """The worker's session in the metadata store has ended: others may have its partitions."""
