"""Who a client is: SASL mechanisms, passwords, tokens, certificates and principals, for both sides.

A SASL mechanism is a conversation without I/O: it turns the peer's message into the next message, or into a result.
The code that carries the messages (SaslHandshake and SaslAuthenticate) is elsewhere, so the broker and every face of
the client share this code. Begin with `conversation`, then `scram` or `plain`; `principal` has the result.

May import `base`, `config` and `web.client`. Must not know: sockets, Twisted, requests, where users are stored.
"""
