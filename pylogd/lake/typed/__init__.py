"""Typed tables: make rows of messages, with a typed column for each field of a registered schema.

Read `decoding` first: a batch of messages becomes columns, and a reason for each message that does not fit. `avro`,
`protobuf` and `json_schema` know the schema languages, `nodes` has their common part, `evolution` lets a table follow
its schemas. Nothing here knows Spark, brokers or the formats of tables.
"""
