"""Audit as a service: verify, window by window and stage by stage, that every message that producers report arrived.

Where to look: `counting` reads the stamps of messages, `judging` compares them with reports, `ledger` keeps windows and
decides when they can be judged; none of them does I/O. `stages` has the interface of a stage, which `topics` and
`tables` implement. `state` keeps results in a topic, `markers` tells jobs that an hour is complete, `service` runs all
parts, `web` serves metrics and the report, and `report` draws the report.
Source: the Kafka paper (NetDB 2011), section 3.3, "auditing".
"""
