"""Log compaction: keep only the last record of each key. Kafka calls the part that does this the log cleaner.

- `cleaner`: the threads, and which log they take next (`candidates`); `throttle` limits their bytes per second.
- `cleaners`: a cleaner for all logs, or one for each disk.
- `log_compaction`: compact one log. It describes the work as a job (`jobs`) and installs the segments that result.
- `passes`: do a job in two passes over the segment files, with `offset_map`, `rewrite` and `transactions`.
- `process`: do a job in a child process.
- `swap`: rename the files of a compacted segment so that a crash at any point loses nothing.
"""
