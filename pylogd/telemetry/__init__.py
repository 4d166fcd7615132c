"""The metrics that clients push to the broker (KIP-714): subscriptions of clients, and the pushed metrics.

Strategy: `service` is what handlers use. `subscriptions` says what a client is asked for, `instances` keeps the clients
that have asked, in bounded number; `otlp` reads what they push, in a thread; `values` keeps the last values for whoever
serves metrics. Without anyone who serves them, clients are asked for nothing.

Must not know: requests, Prometheus.
"""
