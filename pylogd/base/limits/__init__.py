"""Limits on the work that one request can cause, and on the memory that all clients of a broker can use.

`elements` bounds the number of elements of a request, while it is decoded; `answers` bounds the bytes of an answer,
before it is built; `names` has the longest ids and names. docs/limits.md lists all bounds, with their settings.

Must not know: messages, sockets, the reactor.
"""
