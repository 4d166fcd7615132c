"""Connections that broker and client have in common: open them, encrypt them, receive large frames in place.

Begin with `client`, a connection to a broker that sends requests and receives replies in order. `receiving` reads a
large frame into its own memory, `tls` encrypts, `sending` writes what the socket accepts at once.

May import `base`, `wire` and `credentials`, and all of Twisted.
"""
