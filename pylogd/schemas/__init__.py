"""A schema registry: Avro schemas by subject and version, each with an id that travels in the messages.

The service (`service`, `web`) keeps everything in a compacted topic and speaks the HTTP API that Confluent's clients
speak; `avro` is what reads and writes messages by it. `pylogd schema-registry` runs it; the extra is
`pylogd-broker[avro]`.
"""
