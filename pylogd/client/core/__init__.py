"""The decisions of a Kafka client, without sockets, threads, timers and clocks (see ARCHITECTURE.md)."""
