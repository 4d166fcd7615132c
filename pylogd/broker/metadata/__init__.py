"""The metadata of a cluster: topics, dynamic settings, live brokers.

Reading guide: `service.Metadata` puts the parts together (`Metadata(settings, open_store(settings, reactor))`, then
`start`, `topics`, `topic_admin`, `cluster`, `broker_configs`, `stop`). `interfaces` defines the metadata store, a tree
of versioned nodes; `tree` and `sqlite` are the embedded store, `zookeeper` the one on ZooKeeper. `layout` defines the
contents of nodes, `changes` how brokers learn of each other's writes. `image` has the values that other packages see;
`topics`, `cluster` and `configs` keep them up to date. `topic_admin` and `isr_writer` change topics; `assignment`
chooses replicas.
"""
