"""The Kafka wire protocol without I/O: no Twisted, no files, no clocks.

Bytes go in and events come out; messages go in and parts (bytes and opaque sized objects) come out.
May import `pylogd.errors` and nothing else of the project.
"""
