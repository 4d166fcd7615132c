"""Coordinate transactions: who is in one, how it ends, and what the leaders of partitions ask about it."""
