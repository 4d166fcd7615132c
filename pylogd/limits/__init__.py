"""Bounds on what one request, and the clients of a broker together, can make the broker do and keep.

`elements` bounds what a request may name, while it is decoded; `answers` bounds the bytes of an answer, before it is
built; `names` has the longest ids and names. docs/limits.md lists all bounds, with their settings.

Must not know: messages, sockets, the reactor.
"""
