"""The blocking face: polled sockets, and threads for work that goes on while the caller is busy."""
