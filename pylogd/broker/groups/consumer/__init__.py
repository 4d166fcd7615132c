"""Consumer groups of the newer protocol (KIP-848): the coordinator assigns, members adopt the assignment one by one.

Strategy: a group is a value. Each change of it is a list of records for the offsets topic, in Kafka's formats, and a
group is nothing but those records applied in order: `group.py` applies them, whether they were just written or are read
when the coordinator loads the partition. `heartbeats.py` decides which records a heartbeat makes, `assignors.py` which
partitions are the target of each member, and `reconciliation.py` how a member reaches its target: no member gets a
partition before its former owner has confirmed that it gave the partition up.

Three numbers order the changes. The *group epoch* is raised when members, their subscriptions or the topics change. The
target assignment is made for a group epoch, which is its *assignment epoch*. A member that has reached the target has
the assignment epoch as its *member epoch*.
"""
