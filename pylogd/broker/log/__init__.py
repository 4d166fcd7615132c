"""Storage: partitions as directories of segment files. Synchronous; the clocks and the file system are passed in.

Start with `manager` (all logs of a broker), `log` (one log) and `segment` (one file). The formats on the disk are
described in docs/log-format.md. May import `pylogd.base.errors` and the codecs of record batches in `pylogd.wire`;
knows neither a reactor nor requests.
"""
