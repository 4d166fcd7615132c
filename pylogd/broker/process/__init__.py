"""The process of a service: options, interpreter settings, limits, signals, logs, exit status.

`pylogd broker`, `twistd pylogd` and the crash tests run their brokers with `broker`, `pylogd schema-registry` runs with
`shell`. What a process does to itself (garbage collector, file limit, signal handlers, log output) is done here only.
"""
