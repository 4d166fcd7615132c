"""What the cluster knows of itself: topics, settings changed at run time, live brokers.

Reading guide: `service.Metadata` puts the room together (`Metadata(settings, open_store(settings, reactor))`, then
`start`, `topics`, `cluster`, `broker_configs`, `stop`). `interfaces` is the tree below, `tree` and `sqlite` its
embedded implementation; `layout` is what stands in the tree, `changes` how news of it travels; `image` has the values
that the rest of the broker sees, `topics`, `cluster` and `configs` keep them and change them; `assignment` places
replicas.
"""
