"""Decide on which brokers replicas are: new topics and partitions, moves, relabelled topics, decommissioned brokers.

Strategy: `brokers` has the one rule which broker may get a new replica, and `layout` the values about which a question
is asked. `new` answers for new partitions, `moves` for partitions that exist, `leading` for preferred leaders. Brokers
use them when they create topics and add replicas, and check by the same rule what others planned; the command line and
the console use them to plan moves. So a plan is the same whoever makes it, and no broker refuses it.

Must not know: connections, stores, time, chance.
"""
