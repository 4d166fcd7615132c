"""HTTP for all services: a server whose connections, requests and answers are bounded, and a client that is too.

Begin with `channel` (connections share places by address) and `pages` (a few read-only pages, such as metrics).
`client` asks other servers within a time and a size; `tls` reloads certificates. The registry and the console add
their own resources to it.

May import `base`. The server uses Twisted; `client` blocks and is for threads.
"""
