"""The errors of a mirror, besides errors of brokers and of the metadata store."""

from __future__ import annotations

from pylogd.base.errors import PylogdError


class MirrorError(PylogdError):
    """An error of the mirror itself."""


class InvalidMirrorFile(MirrorError):
    """The file with the routes can't be used. The text says what to change, and where."""


class TopicRecreated(MirrorError):
    """A topic of the source has another id than before: it was deleted, and created again with the same name."""


class NotAMember(MirrorError):
    """The worker's session in the metadata store has ended, so other workers may have its partitions."""
