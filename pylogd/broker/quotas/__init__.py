"""Quotas of clients: byte rates, request time, changes of topics and new connections; the clock is passed in."""
