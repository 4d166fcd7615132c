"""A schema registry: schemas by subject and version; each message carries the id of its schema.

The service (`service`, `web`) stores everything in a compacted topic and serves the HTTP API of Confluent's registry,
for Avro, JSON Schema and Protobuf (`formats`). Several registries elect a leader, which makes all changes (`election`).
`avro` serialises and deserialises messages with the registry's schemas. `pylogd schema-registry` runs the service; it
needs the extra `pylogd-broker[schemas]`, or `[avro]` for Avro alone.
"""
