"""What every other wing may use: errors, clocks, state machines, threads, limits, placement, the process itself.

Begin with `errors` (the base classes of all exceptions), `clock` (two kinds of time) and `machine` (states as tables).
`compiled` loads the modules that are written in C.
`process` is what a command does to its own process; `limits` bounds what strangers can make a server do; `placement`
decides which brokers hold which replicas, for brokers, clients and services alike.

Imports nothing else of pylogd. Only `threads`, `deferreds` and `process` use Twisted.
"""
