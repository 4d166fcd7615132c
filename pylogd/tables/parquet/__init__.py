"""The Parquet lake: a directory of Parquet files, partitioned by topic and time, with a history of commits.

`lake` is the protocol of its commits; `table` has the lake as a `Table`.
"""
