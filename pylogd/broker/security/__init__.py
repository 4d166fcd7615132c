"""Authentication and authorization: who a client is, and which operations it may do.

Must not know: sockets, handlers.
"""
