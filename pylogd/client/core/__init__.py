"""Decide what a Kafka client does: no sockets, threads, timers or clocks (see ARCHITECTURE.md)."""
