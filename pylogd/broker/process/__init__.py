"""The process of a broker: its options, and how it runs under `pylogd broker`, `twistd` and in tests.

Begin with `broker`, which runs one until a signal comes. `base.process` has what other services share: signals, logs,
exit status.
"""
