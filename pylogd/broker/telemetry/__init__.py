"""The metrics that clients push to the broker (KIP-714): subscriptions of clients, and the pushed metrics.

Strategy: handlers use `service`. `subscriptions` decides which metrics a client should push, `instances` keeps a
limited number of clients, `otlp` reads the pushed metrics in a thread, and `values` keeps the last values for the
metrics page. Without a metrics page, clients are asked for nothing.

Must not know: requests, Prometheus.
"""
