"""Run real brokers and ZooKeeper servers as child processes, to try pylogd and for tests."""
