"""`pylogd broker --workers N`: N brokers under one command, to use all cores of a machine.

Each worker is a separate broker: a process with a port, a node id and log directories. Workers share only one port, to
which clients may connect first, and the metadata store: ZooKeeper, or the embedded store, which a separate process
serves to the workers. Clients find the leader of each partition as in every cluster.

Public: `run_workers` of `supervisor`. `plan` makes the settings of each worker, `store_process` is the process that
owns the store.
"""
