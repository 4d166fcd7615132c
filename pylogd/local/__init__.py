"""Real brokers and ZooKeeper servers as child processes, to try pylogd out and for tests."""
