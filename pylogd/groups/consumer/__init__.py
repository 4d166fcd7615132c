"""Consumer groups of the newer protocol (KIP-848): the coordinator assigns, members adopt the assignment one by one.

Strategy: a group is a value. Each change of it is a list of records for the offsets topic, in Kafka's formats, and a
group is nothing but those records applied in order: `group.py` applies them, whether they were just written or are
read when the coordinator loads the partition. `heartbeats.py` decides which records a heartbeat makes, `assignors.py`
which partitions each member is to have, and `reconciliation.py` how a member gets there: nobody is given a partition
before the member that had it has confirmed that it gave it up.

Three numbers order the changes. The *group epoch* is raised when members, their subscriptions or the topics change. The
target assignment is made for a group epoch, the *assignment epoch*. A member that has reached the target has that
number as its *member epoch*.
"""
