"""The process of a service: interpreter settings, limits, signals, logs, exit status.

What a process does to itself (garbage collector, file limit, signal handlers, log output) is done here only. Begin with
`shell`, which runs a service until a signal comes.
"""
