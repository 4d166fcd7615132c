"""SASL mechanisms as conversations without I/O, the client's side and the broker's side.

Strategy: a mechanism turns the peer's message into the next message, or into a result. The code that carries the
messages (SaslHandshake and SaslAuthenticate) is elsewhere, so the broker and every face of the client share this code.

Must not know: sockets, Twisted, requests, where users are stored.
"""
