"""Typed tables: make rows of messages, with a typed column for each field of a registered schema.

Read `decoding` first: a batch of messages becomes columns, and a reason for each message that does not fit. `avro`,
`protobuf` and `json_schema` know the schema languages, `nodes` what they have in common, `evolution` how a table
follows its schemas. Nothing here knows Spark, brokers or the formats of tables.
"""
