"""Metrics and health of a broker over HTTP, for Prometheus and for load balancers.

Strategy: only a few sums are computed while requests are served (`api.statistics`, `replica.partition`). Metrics are
read from the parts of the broker on request, in steps that give the reactor back after `base.steps.STEP_SECONDS`.
Labels are APIs, listeners, directories, and a limited number of topics and groups.

Rules: read only. Nothing here changes the state of a part, and no part knows this package.
"""
