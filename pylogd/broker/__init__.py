"""The broker: logs on the disk, replicas, groups and transactions, served over the Kafka protocol.

Begin with `broker.py`, which puts the parts together, and then follow a record: `net` receives a request, `api` answers
it, `replica` decides who may read and write, `log` has the files. `groups` and `transactions` are the coordinators,
`metadata` and `controller` what a cluster agrees on, `security` and `quotas` what a client may do. ARCHITECTURE.md has
the road of a record with all its steps.

May import `base`, `config`, `wire`, `web`, `store`, `credentials` and `link`. Each part has a rule of its own in
tests/layers.py.
"""
