"""The blocking face: sockets that are polled, and threads where the caller must not wait."""
