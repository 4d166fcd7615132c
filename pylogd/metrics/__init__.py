"""Metrics and health of a broker over HTTP, for Prometheus and for load balancers.

Strategy: nothing is computed while requests are served but a few sums (`api.statistics`, `replica.partition`). What is
served is read from the parts of the broker when it is asked for, in steps that give the reactor back after
`steps.STEP_SECONDS`. Labels are APIs, listeners, directories, and topics and groups up to a bound.

Rules: read only. Nothing here changes the state of a part, and no part knows this package.
"""
