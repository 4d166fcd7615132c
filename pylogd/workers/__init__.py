"""`pylogd broker --workers N`: N brokers under one command, to use all cores of a machine.

Each worker is a broker of its own: a process with a port, a node id and log directories. They share nothing but one
port, to which clients may connect first, and the metadata store: the embedded one, which a process of its own serves to
the workers, or ZooKeeper. Clients find the leader of each partition as in every cluster.

Public: `run_workers` of `supervisor`. `plan` makes the settings of each worker, `store_process` is the process that
owns the store.
"""
