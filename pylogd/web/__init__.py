"""HTTP for all services: a server whose connections, requests and answers are bounded, and a client that is too.

Begin with `channel` (connections share places by address), then `pages` (a few read-only pages, such as metrics) and
`bodies` (requests with bodies, for the resources of the registry and the console). `client` sends requests to other
servers within a time and a size. `tls` reads certificates again when they change.

May import `base`. The server uses Twisted; `client` blocks and is for threads.
"""
