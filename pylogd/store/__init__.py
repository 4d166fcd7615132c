"""The metadata store: a tree of versioned nodes with watches and sessions, which a cluster agrees on.

Begin with `interfaces`: it defines `IMetadataStore`, and nothing that uses a store knows which one it has. `tree` and
`sqlite` are the store of a single broker, `server` and `remote` share that with other processes of the machine,
`zookeeper` is the one on ZooKeeper. `paths` names the nodes; `consumers` reads those of the paper's consumer groups.

May import `base` and `config`. Twisted's reactor is used by `sqlite`, `server`, `remote` and `frames` only.
"""
