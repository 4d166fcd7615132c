"""The blocking face: polled sockets, and threads for work that continues while the caller is busy."""
