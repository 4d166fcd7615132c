"""The Parquet lake: a directory of Parquet files, partitioned by topic and time, with a history of commits.

`lake` is the protocol of its commits; `table` has the lake as a `Table`. `files` says what a file system has to do,
`local` and `remote` do it without Spark. `commits`, `checkpoints` and `attempts` are its documents, `history` reads
them, `changes` says what can be committed beside what others commit, `compaction` and `expiry` keep a lake small.
"""
