"""Consumer groups in ZooKeeper: their members divide the partitions among themselves, without a broker.

This is the consumer group of the Kafka paper (section 3.2, Algorithm 1), with the registries of Kafka 0.8: every
consumer of a group reads the other members and the partitions, computes its own share, and claims it.
`docs/zookeeper-consumers.md` has the guarantee, the registries and the state table.

Modules: `assignment` computes the share of a consumer, `registries` has paths and formats, `view` has the consumer's
view of its group, `claims` makes its writes, and `lease` measures how long its claims hold. `coordinator` is the state
machine (with Deferreds and a given clock). `bridge` runs it for blocking callers, in a thread with its own event loop.

The blocking interface is `bridge.ZooKeeperMembership`:

    membership = ZooKeeperMembership(
        "zk1:2181,zk2:2181/chroot", "group", {"events": 2},     # topic -> streams; or names; or a compiled pattern
        initial="smallest",                                     # or "largest": where partitions without an offset begin
        session_timeout_ms=6000, commit_interval_ms=5000,       # None: no periodic commits
        rebalance_max_retries=20, rebalance_backoff_ms=500)
    membership.start(timeout)                     # blocks until registered; raises ZooKeeperUnavailable
    for event in membership.poll(timeout):        # waits up to `timeout` for a first event; raises RebalanceFailed
        if isinstance(event, Revoked):            # stop fetching event.partitions; commit unless event.lost; then
            membership.done(event)                # only now are they released (Assigned need not be acknowledged)
        else:                                     # Assigned: fetch event.offsets: partition -> committed offset | None
            ...                                   # event.streams: partition -> number of the stream, from 0
    membership.may_fetch                          # False: return no record now; cheap, ask before every one
    membership.store({partition: offset})         # processed up to here: for the next periodic commit and the
                                                  # release; never blocks
    membership.commit({partition: offset})        # the same now; blocks; raises NotOwner, ZooKeeperUnavailable
    membership.committed(partitions)              # partition -> offset | None; blocks
    membership.close(timeout)                     # commits what was stored, releases, leaves; bounded. The caller
                                                  # has stopped fetching before

Rules for the caller: use one thread; carry out events in their order. An offset is that of the next record to read, as
in Kafka. Where `offsets` has None, look up the start (`membership.initial`) and store it at once, so that a later owner
begins at the same offset.
"""
