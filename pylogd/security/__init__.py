"""Who a client is, and what it may do: principals, authentication, authorization.

Must not know: sockets, handlers.
"""
