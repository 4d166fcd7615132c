"""Delta tables, by deltalake (delta-rs): the extra `pylogd-broker[delta]`.

`table` commits, `staging` writes files in tasks.
"""
