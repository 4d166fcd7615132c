"""Copy topics between clusters and to tables: a controller that divides the partitions, and workers that copy batches.

A *route* leads from a source cluster to a target and names the topics that take it. One TOML file has all clusters and
routes (`settings`). `copying` moves batches from a `source` to a `target` and keeps checkpoints there, in the same
transaction. `controller` assigns partitions to workers (`grants`), and decides the names and settings of topics at
the target (`topics`). Processes find each other through the metadata store (`membership`). docs/mirror.md is for
operators.
"""
