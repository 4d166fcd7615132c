"""Storage: partitions as directories of segment files. Synchronous; clock and file system are passed in.

May import `pylogd.errors`, `pylogd.wire.records` and `pylogd.wire.compression`; knows no reactor and no request.
"""
