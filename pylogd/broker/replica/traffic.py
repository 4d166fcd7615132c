"""The requests of clients and followers for a partition, as totals that never decrease. Metrics are made from them."""

from __future__ import annotations


class Traffic:
    """The totals of one partition since the broker hosts it.

    produced: Produce requests that the fast path answered.
    appends: appends by the general path.
    failed_appends: how many of `appends` failed, except for errors that Kafka's brokers blame on the client
        (`api.traffic`).
    fetches, fetched_bytes: fetches of clients that found records, and the bytes of these records.
    copies, copied_bytes: the same for followers.
    fetch_errors: fetches that were answered with an error.
    failed_fetches: how many of `fetch_errors` count as failures, by the same rule as `failed_appends`.
    """

    __slots__ = (
        "appends", "copied_bytes", "copies", "failed_appends", "failed_fetches", "fetch_errors", "fetched_bytes",
        "fetches", "produced",
    )  # fmt: skip

    def __init__(self) -> None:
        self.produced = self.appends = self.failed_appends = 0
        self.fetches = self.fetched_bytes = self.copies = self.copied_bytes = 0
        self.fetch_errors = self.failed_fetches = 0
