"""What clients and followers asked of a partition, as totals that never decrease. Metrics are made from them."""

from __future__ import annotations


class Traffic:
    """The totals of one partition since the broker hosts it.

    produced: Produce requests that the fast path answered. appends: those of the general path. failed_appends: of
    these, how many failed for another reason than Kafka's brokers take for the client's (`api.traffic`).
    fetches, fetched_bytes: fetches of clients that found records. copies, copied_bytes: those of followers.
    fetch_errors: fetches that were answered with an error. failed_fetches: of these, those as with `failed_appends`.
    """

    __slots__ = (
        "appends", "copied_bytes", "copies", "failed_appends", "failed_fetches", "fetch_errors", "fetched_bytes",
        "fetches", "produced",
    )  # fmt: skip

    def __init__(self) -> None:
        self.produced = self.appends = self.failed_appends = 0
        self.fetches = self.fetched_bytes = self.copies = self.copied_bytes = 0
        self.fetch_errors = self.failed_fetches = 0
