"""Well-formed requests that ask for very much, against a real broker whose other clients must not notice.

`messages` makes them from the schemas in `protocol/apis`, `state` what they refer to, `attacks` those that take more
than one request, `neighbour` measures another client. `python -m tests.extreme` runs them for as long as it is told.
"""
