"""The client of a schema registry: its API, and Avro messages that begin with the id of their schema.

Begin with `avro`, whose serializer and deserializer applications use. `api_client` asks the registry, with the settings
of `access`. `patterns` matches JSON Schema's regular expressions in linear time, for the registry and typed tables too.
"""
