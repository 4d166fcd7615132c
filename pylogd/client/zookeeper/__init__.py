"""Consumers that share partitions among themselves, with a tree in ZooKeeper and no coordinator on a broker.

This is the consumer group of the Kafka paper (section 3.2, Algorithm 1), with the registries where Kafka 0.8 has them:
every consumer of a group reads who the others are and which partitions there are, works out its own share, and claims
it. `docs/zookeeper-consumers.md` has the guarantee, the registries and the state table.

Reading guide: `assignment` is the arithmetic, `registries` the paths and documents, `view` what a consumer knows of its
group, `claims` what it writes, `lease` how long its claims are safe, `coordinator` the state machine (Deferreds, no
reactor of its own), `bridge` the same for blocking callers, in a thread with a loop of its own.

The blocking shape, `bridge.ZooKeeperMembership`, for whoever drives a consumer with it:

    membership = ZooKeeperMembership(
        "zk1:2181,zk2:2181/chroot", "group", {"events": 2},     # topic -> streams; or names; or a compiled pattern
        initial="smallest",                                     # or "largest": where partitions without an offset begin
        session_timeout_ms=6000, commit_interval_ms=5000,       # None: nothing is committed by itself
        rebalance_max_retries=20, rebalance_backoff_ms=500)
    membership.start(timeout)                     # blocks until registered; raises ZooKeeperUnavailable
    for event in membership.poll(timeout):        # waits so many seconds for a first event; raises RebalanceFailed
        if isinstance(event, Revoked):            # stop fetching event.partitions; commit unless event.lost; then
            membership.done(event)                # only now are they released (Assigned need not be acknowledged)
        else:                                     # Assigned: fetch event.offsets: partition -> committed offset | None
            ...                                   # event.streams: partition -> number of the stream, from 0
    membership.may_fetch                          # False: hand out no record now; cheap, look before every hand-out
    membership.store({partition: offset})         # processed up to here: goes out with the next periodic commit, and
                                                  # with the release; never blocks
    membership.commit({partition: offset})        # the same now; blocks; raises NotOwner, ZooKeeperUnavailable
    membership.committed(partitions)              # partition -> offset | None; blocks
    membership.close(timeout)                     # commits what was stored, releases, leaves; bounded. The caller
                                                  # has stopped fetching before

Rules for the caller: one thread; events are obeyed in their order; an offset is that of the next record to read, as
everywhere in Kafka; where `offsets` has None, the caller looks up the start (`membership.initial`) and stores it at
once, so that a later owner begins there too.
"""
