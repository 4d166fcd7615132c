"""Connections: server protocol, ordered replies, sendfile, back-pressure."""
