"""The interfaces of the service to a stage: `Stage`, and the source of a stage's committed offsets.

A stage reads messages from given offsets, counts each message once in each run of the service, and adds the counts to
the ledger, with the offsets up to which it has counted. There are two kinds:

- a topic on a cluster (`topics.TopicStage`) has its own offsets. If it is a copy of another stage, made by a mirror, a
  `CommittedOffsets` tells up to which offsets of the source the copy is complete. Then its end is looked up, and the
  window   is judged when it is counted up to this end. Without a `CommittedOffsets`, it is judged `settle_ms` after its
  source.
- a table (`tables.TableStage`) has the offsets of the topics from which it was loaded. It is judged when its commits
  have   passed the bound of its source.

A new kind of stage implements `Stage`; a new kind of copy implements only `CommittedOffsets`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from twisted.internet.defer import Deferred

from pylogd.services.audit.markers import Marker
from pylogd.services.audit.windows import StageSpec


class CommittedOffsets(Protocol):
    """Tells up to which offsets a copy of a stage is complete."""

    def committed(self, topics: Collection[str]) -> Deferred[Mapping[tuple[str, int], int]]:
        """Return a Deferred of the source's offsets, by topic and partition, below which the copy has all messages.

        The copy's brokers must have acknowledged these messages. Partitions without an answer may be left out. Fails
        with PylogdError or OSError; then the earlier offsets stay valid.
        """


class Stage(Protocol):
    """The service's interface to a stage: a cluster, a copy of it or a table, whose messages it reads and counts."""

    spec: StageSpec

    def start(self, positions: Mapping[tuple[str, int], int] | None) -> Deferred[None]:
        """Begin to read. The Deferred fires once the start of each partition is known.

        positions: the offsets of an earlier run; None in the first run, which begins where the options say.
        """

    def ends(self, topic: str) -> Deferred[dict[int, int]]:
        """Return a Deferred of the present end offset of each partition of a topic. Not called for tables."""

    def refresh(self) -> Deferred[None]:
        """Look up the stage's committed offsets, if it is a copy."""

    def publish(self, marker: Marker) -> Deferred[None]:
        """Publish a period's verdict to readers of the stage, in addition to its record in the topic of markers.

        Fails with PylogdError or OSError; then it is called again.
        """

    def stop(self) -> Deferred[None]:
        """Stop reading. The Deferred fires once the stage adds nothing more to the ledger."""
