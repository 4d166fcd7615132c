"""Decide on which brokers replicas are: new topics and partitions, moves, relabelled topics, decommissioned brokers.

Strategy: `brokers` has the rule which broker may get a new replica, and `layout` has the input of a plan. `new` plans
new partitions, `moves` existing partitions, and `leading` preferred leaders. Brokers use them when they create topics
and add replicas, and check other plans by the same rule; the command line and the console use them to plan moves. So
every planner makes the same plan, and no broker refuses it.

Must not know: connections, stores, time, chance.
"""
