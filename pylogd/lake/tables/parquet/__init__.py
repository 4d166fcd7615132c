"""The Parquet lake: a directory of Parquet files, partitioned by topic and time, with a history of commits.

`lake` is the protocol of its commits; `table` has the lake as a `Table`. `files` is the interface of file systems,
which `local` and `remote` implement without Spark. `commits`, `checkpoints` and `attempts` are its documents; `history`
reads them. `changes` decides which changes can follow commits of other processes. `compaction` and `expiry` keep a lake
small.
"""
