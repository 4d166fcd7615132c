"""Many brokers in one process: what a broker's death, a rolling restart or ZooKeeper's election costs a large cluster.

`python -m tests.scale` simulates clusters of growing size and writes RESULTS.md; `test_scale` is the small version.
"""
