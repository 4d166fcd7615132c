"""The parts of the transactions package together, as a broker creates, starts and stops them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogd.broker.metadata.service import Metadata
from pylogd.broker.replica.service import Replicas
from pylogd.broker.transactions.coordinator import TransactionCoordinator
from pylogd.broker.transactions.links import BrokerLinks
from pylogd.broker.transactions.verifier import TransactionVerifier
from pylogd.config import Settings


class Transactions:
    """A broker's part in transactions.

    coordinator: coordinates transactional ids.
    verifier: verifies transactions for the partitions that this broker leads.
    """

    def __init__(
        self,
        replicas: Replicas,
        metadata: Metadata,
        settings: Settings,
        clock: IReactorTime,
        now_ms: Callable[[], int],
        connect: Callable[[int], Deferred[Any]],
        ask_self: Callable[[Any], Any],
    ) -> None:
        """Arguments:

        connect: opens a connection to a broker.
        ask_self: answers a request of this broker to itself.
        """
        node_id = settings.integer("node.id")
        # Markers wait for disks and replicas. So the markers of slow partitions, and leaders' questions, have their own
        # connections.
        self._links = [
            BrokerLinks(node_id, connect, ask_self, lambda: settings.integer("request.timeout.ms") / 1000)
            for _ in range(3)
        ]
        marker_links, slow_marker_links, verifier_links = self._links
        self.coordinator = TransactionCoordinator(
            replicas, metadata, settings, clock, now_ms, send_markers=marker_links.ask,
            send_slow_markers=slow_marker_links.ask,
        )  # fmt: skip
        self.verifier = TransactionVerifier(
            self.coordinator, node_id, verifier_links.ask,
            lambda: settings.flag("transaction.partition.verification.enable"),
        )  # fmt: skip

    def start(self) -> None:
        """Begin to coordinate. Call it before the replica manager starts."""
        self.coordinator.start()

    def stop(self) -> None:
        """Stop coordinating, answer the waiting questions, and close the connections."""
        self.coordinator.stop()
        self.verifier.stop()
        for links in self._links:
            links.stop()
