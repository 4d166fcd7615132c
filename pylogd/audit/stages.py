"""The interfaces of the service to a stage: `Stage`, and the source of a stage's committed offsets.

A stage reads messages, counts them and gives the counts to the ledger, each message of its topic once in each run of
the service, from the offsets that it is given. It says which offsets it has counted up to; the ledger knows the rest:

- a topic on a cluster (`topics.TopicStage`): has offsets of its own. If it is a copy of another stage, as a mirror
  makes it, a `CommittedOffsets` says up to where of its source everything is there; then its end is looked up, and the
  window is judged when it is counted up to there. Without one it is judged `settle_ms` after its source.
- a table (`tables.TableStage`): has the offsets of the topics that it was loaded from. It is judged when its commits
  have passed what its source had.

A new kind of stage implements `Stage`; a new kind of copy only `CommittedOffsets`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from twisted.internet.defer import Deferred

from pylogd.audit.markers import Marker
from pylogd.audit.windows import StageSpec


class CommittedOffsets(Protocol):
    """Who knows up to where a copy of a stage has everything."""

    def committed(self, topics: Collection[str]) -> Deferred[Mapping[tuple[str, int], int]]:
        """Fire with the offset of the source, by topic and partition, below which all messages are in the copy.

        Acknowledged by the copy's brokers, that is: not only sent. Partitions without an answer may be left out. Fails
        with PylogdError or OSError; then the offsets of before still hold.
        """


class Stage(Protocol):
    """The service's interface to a stage: a cluster, a copy of it or a table, whose messages it reads and counts."""

    spec: StageSpec

    def start(self, positions: Mapping[tuple[str, int], int] | None) -> Deferred[None]:
        """Begin to read. Fires once it is known where each partition begins.

        positions: the offsets of an earlier run; None at the first one, which begins where the service was told to.
        """

    def ends(self, topic: str) -> Deferred[dict[int, int]]:
        """Fire with the end offset of each partition of a topic, now. Not called for tables."""

    def refresh(self) -> Deferred[None]:
        """Look up the stage's committed offsets, if it is a copy."""

    def publish(self, marker: Marker) -> Deferred[None]:
        """Tell the readers of the stage a period's verdict, in addition to its record in the topic of markers.

        Fails with PylogdError or OSError; then it is called again.
        """

    def stop(self) -> Deferred[None]:
        """Stop reading. Fires once nothing is given to the ledger any more."""
